"""Processes of their own that run a module of this very package."""

from __future__ import annotations

import sys
from pathlib import Path

_HOME = Path(__file__).resolve().parents[2]


def module_command(module: str) -> tuple[str, ...]:
    """Of ``module`` in this interpreter. With ``-m`` alone Python would look into the working
    directory first, where a clone of the sources, or anybody's ``json.py``, may lie; a package that
    lies there itself is found there."""
    alone = () if Path.cwd() == _HOME else ("-P",)
    return (sys.executable, *alone, "-m", module)
