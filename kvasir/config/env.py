"""KVASIR_* variables that are no options; those that are, are read by ``config.settings``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

PREFIX = "KVASIR_"
OTHER_VARIABLES = ("KVASIR_CACHE", "KVASIR_CONFIG")
"""Those of ours that are no options."""


class Environment(msgspec.Struct, frozen=True):
    isa: str | None
    """KVASIR_ISA: instruction set level, for tests and bug reports."""
    cache: Path
    """KVASIR_CACHE: where downloaded models live; default: kvasir/models in the user's cache
    directory ($XDG_CACHE_HOME or ~/.cache)."""


def read_env(variables: Mapping[str, str] | None = None) -> Environment:
    """``variables`` defaults to the process environment. An empty variable counts as absent."""
    source = os.environ if variables is None else variables
    named = source.get("KVASIR_CACHE")
    base = source.get("XDG_CACHE_HOME")
    shared = Path(base) if base else Path.home() / ".cache"
    return Environment(
        isa=source.get("KVASIR_ISA") or None,
        cache=Path(named).expanduser() if named else shared / "kvasir" / "models",
    )
