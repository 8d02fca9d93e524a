"""Writes the figures of the pages from bench/results; ``--check`` only says which are not so.

    python -m bench.figures [--check]

A page that says something else than its result, a result from a tree with changes or a busy
machine, and a measured ratio that stands in no block end with status 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.figures.advice import ADVICE
from bench.figures.bars import BARS_OF_SERVER
from bench.figures.blocks import Blocks, fill, loose
from bench.figures.families import FAMILY_TABLES
from bench.figures.install import INSTALL
from bench.figures.limits import LIMITS
from bench.figures.machines import MACHINES
from bench.figures.people import PEOPLE_BLOCKS
from bench.figures.picture import PICTURES
from bench.figures.quantized import QUANTIZED
from bench.figures.readme import README
from bench.figures.results import Refused
from bench.figures.structured import STRUCTURED

ROOT = Path(__file__).parents[2]
BLOCKS: Blocks = {
    **README,
    **LIMITS,
    **INSTALL,
    **QUANTIZED,
    **ADVICE,
    **MACHINES,
    **STRUCTURED,
    **BARS_OF_SERVER,
    **FAMILY_TABLES,
    **PEOPLE_BLOCKS,
}


LIMITS_PAGE = "bench/results/limits.md"


def pages(root: Path = ROOT) -> list[Path]:
    """Those whose figures are generated."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md")), root / LIMITS_PAGE]


def faults(root: Path = ROOT) -> list[str]:
    """What ``--check`` complains about, a line each."""
    found = []
    for path in pages(root):
        text, name = path.read_text("utf-8"), path.relative_to(root)
        if fill(text, BLOCKS) != text:
            found.append(f"{name}: differs from bench/results: run python -m bench.figures")
        if path != root / LIMITS_PAGE:
            found += [
                f"{name}: a figure outside of a block: {line.strip()}" for line in loose(text)
            ]
    for place, draw in PICTURES.items():
        path = root / place
        if not path.exists() or path.read_text("utf-8") != draw():
            found.append(f"{place}: differs from bench/results: run python -m bench.figures")
    return found


def main() -> int:
    try:
        if sys.argv[1:] != ["--check"]:
            for path in pages():
                path.write_text(fill(path.read_text("utf-8"), BLOCKS), encoding="utf-8")
            for place, draw in PICTURES.items():
                (ROOT / place).write_text(draw(), encoding="utf-8")
        found = faults()
    except Refused as error:
        found = [str(error)]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
