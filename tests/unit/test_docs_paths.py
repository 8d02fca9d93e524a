"""Files that the pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
)
FILE = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|h|cpp|inl|md))`")
HOMES = ("", "kvasir/", "native/", "docs/", "tests/")


def missing(text: str) -> list[str]:
    named = set(FILE.findall(text))
    return sorted(x for x in named if not any((ROOT / home / x).exists() for home in HOMES))


@pytest.mark.parametrize("page", PAGES)
def test_files_that_pages_name_are_there(page: str) -> None:
    assert missing((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_file_that_is_not_there_is_found() -> None:
    assert missing("`core/plan.py`, `core/nowhere.py` and `core/nowhere`") == ["core/nowhere.py"]
