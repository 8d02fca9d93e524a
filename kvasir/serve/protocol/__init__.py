"""Requests as typed structs. Field names and defaults are OpenAI's and vLLM's."""
