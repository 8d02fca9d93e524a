"""How far quantized models are from their origin: ``python -m bench.quantized --help``."""
