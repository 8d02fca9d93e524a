"""Sampling: the NumPy specification of the native sampler."""
