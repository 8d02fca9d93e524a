"""Figures of the pages, written from the results that they stand on."""
