"""Makes quantized models: matrices of floats become codes and scales, row by row, without data."""
