"""Prints requirement lines of pyproject.toml, one per line: ``requirements.py build base dev …``.

``build`` is the build system's own list, ``base`` the package's, any other word an extra.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(groups: list[str]) -> list[str]:
    """All requirements of ``groups`` in order; KeyError for an unknown extra."""
    path = Path(__file__).parent.parent / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {
        "build": project["build-system"]["requires"],
        "base": project["project"]["dependencies"],
        **project["project"]["optional-dependencies"],
    }
    return [line for group in groups for line in known[group]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
