"""Tool calls and reasoning: one table of formats, from which grammar and parser follow."""
