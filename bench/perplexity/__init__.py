"""Perplexity of Kvasir beside llama.cpp: ``python -m bench.perplexity --help``."""
