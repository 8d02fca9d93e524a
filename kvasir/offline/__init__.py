"""``LLM``: an engine in the process of its user."""
