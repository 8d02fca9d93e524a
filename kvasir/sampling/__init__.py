"""Sampling: the NumPy specification of the native sampler, and the one validator of sampling parameters."""
