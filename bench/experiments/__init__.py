"""The claims of the literature about serving, measured here: one small file for each."""
