"""How much a test does: ``make test`` has the short forms, ``make test-long`` and ``make explore``
the long ones."""

from __future__ import annotations

import os

IS_LONG = os.environ.get("KVASIR_LONG", "") not in ("", "0")
IS_WIDE = IS_LONG or os.environ.get("KVASIR_CASES") == "new"


def n_of(short: int, long: int) -> int:
    """How many examples a property is tried on, or how large a case is."""
    return long if IS_WIDE else short


def asked_of(name: str, short: int, long: int) -> int:
    """The same, unless the environment's variable ``name`` says how many."""
    return int(os.environ.get(name) or n_of(short, long))
