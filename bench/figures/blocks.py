"""Generated parts of a page: between two comments that Markdown does not show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
LOOSE = re.compile(r"\d(\.\d+)?x |\d times (sooner|faster|the best)|\d tok/s|tokens a second")
"""What a measured rate or ratio looks like."""

Blocks = Mapping[str, Callable[[], str]]


def fill(page: str, blocks: Blocks) -> str:
    """``page`` with every block written anew. Raises KeyError for a block that nobody writes."""
    return BLOCK.sub(lambda found: found[1] + blocks[found[2]]() + found[4], page)


def loose(page: str) -> list[str]:
    """Lines with what looks like a measurement outside of all blocks."""
    return [line for line in BLOCK.sub("", page).splitlines() if LOOSE.search(line)]
