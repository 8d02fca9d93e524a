"""Requests as typed structs: one file per endpoint family. Field names and defaults are OpenAI's and vLLM's."""
