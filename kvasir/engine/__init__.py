"""Plan, run, commit: the engine, its loops, and what survives it."""
