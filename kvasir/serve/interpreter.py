"""Processes of their own that run a module of this very package."""

from __future__ import annotations

import sys
from pathlib import Path

_HOME = Path(__file__).resolve().parents[2]


def module_command(module: str) -> tuple[str, ...]:
    """Of ``module`` in this interpreter. With ``-m`` alone Python would look into the working
    directory first, where a clone of the sources, or anybody's ``json.py``, may lie; a package that
    lies there itself is found there."""
    alone = () if _is_at_home() else ("-P",)
    return (sys.executable, *alone, "-m", module)


def _is_at_home() -> bool:
    try:
        return Path.cwd() == _HOME
    except OSError:  # a server outlives the folder that it was started in
        return False
