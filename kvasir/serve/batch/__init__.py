"""Batches: their input is checked, their lines are computed, their output is written."""
