"""Quantized checkpoints: what their config says of how modules are stored, and these as rows."""
