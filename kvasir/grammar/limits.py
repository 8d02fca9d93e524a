"""How large what a client sends may be."""

from __future__ import annotations

import msgspec


class GrammarLimits(msgspec.Struct, frozen=True):
    """Of one constraint."""

    n_bytes: int = 2**20
    """Of a schema, expression or grammar."""
    depth: int = 60
    """Of a schema."""
    n_values: int = 10_000
    """Of all ``enum`` of a schema together, or of choices."""
    n_tools: int = 128


LIMITS = GrammarLimits()
"""Where nobody says others."""
