"""What the page decides without a browser: by node's own test runner, where there is node."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.web.markdown_texts import NODE, different, has_node

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests" / "web").glob("*.test.mjs"))

pytestmark = pytest.mark.skipif(
    not has_node(), reason="node 20.19 or newer is not here; the page does not need it"
)


def test_modules_by_themselves() -> None:
    assert len(TESTS) >= 4
    command = [str(NODE), "--test", *map(str, TESTS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]


def test_our_own_pages_are_read_as_another_reads_them() -> None:
    pages = sorted((ROOT / "docs").glob("*.md"))
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *pages)]
    assert [pages[i - 1].name if i else "README.md" for i in different(texts)] == []
