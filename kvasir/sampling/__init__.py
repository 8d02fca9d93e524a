"""Sampling: the NumPy specification of the native sampler, and the validator of its parameters."""
