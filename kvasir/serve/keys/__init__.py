"""API keys: how they are kept, whose a request is, and what each may ask for."""
