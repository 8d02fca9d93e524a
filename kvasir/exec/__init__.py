"""Executors compute: reference (NumPy), fake (no model), cpu (native)."""
