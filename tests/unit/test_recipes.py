"""Changes that pages of ``docs`` show still fit the files that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(p for p in (ROOT / "docs").glob("add-*.md") if "```diff" in p.read_text())
STEP = re.compile(r"^\d+\. |^\*\*Tests", re.MULTILINE)
FILE = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|h|cpp|inl))`")
BLOCK = re.compile(r"^ *```diff\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
HOMES = ("", "kvasir/", "native/")


def old_lines(step: str) -> list[str]:
    """What a step's diffs take away or lean on."""
    lines = [line.strip() for block in BLOCK.findall(step) for line in block.splitlines()]
    kept = [line.removeprefix("-").replace("…", "").strip() for line in lines if line[:1] != "+"]
    return [line for line in kept if line]


def missing(page: str) -> list[str]:
    """Lines that are in no file which their step names."""
    found = []
    for step in STEP.split(page):
        names = [ROOT / home / name for name in FILE.findall(step) for home in HOMES]
        text = "\n".join(path.read_text() for path in names if path.exists())
        found += [line for line in old_lines(step) if line not in text]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_what_a_page_changes_is_there(page: Path) -> None:
    text = page.read_text()
    assert missing(text) == []
    assert sum(map(len, map(old_lines, STEP.split(text)))) > 0


def test_a_line_that_is_gone_is_found() -> None:
    page = "1. In `kvasir/core/kvtypes.py`:\n\n   ```diff\n   -_NONE = (\n   +_ALL = (\n   ```\n"
    assert missing(page) == ["_NONE = ("]
