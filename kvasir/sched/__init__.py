"""Who computes what in the next step. Decisions over ids and numbers."""
