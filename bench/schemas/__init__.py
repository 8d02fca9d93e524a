"""Schemas with instances of others: what is refused, what passes, and what it takes."""
