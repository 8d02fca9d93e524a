"""The page's Markdown beside another's: what both make of the same texts, as HTML."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from markdown_it import MarkdownIt

HERE = Path(__file__).parent
NODE = shutil.which("node")
LEAST_NODE = (20, 19)
"""Reads modules whose names end in .js without a package.json."""
BLOCKS = "p|ul|ol|li|blockquote|h[1-6]|hr|pre|table|thead|tbody|tr|th|td"
TAG = re.compile(rf"\s*(</?(?:{BLOCKS})(?: [^>]*)?/?>)\s*")


def has_node() -> bool:
    if NODE is None:
        return False
    told = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    found = tuple(int(x) for x in told.strip().lstrip("v").split(".")[:2])
    return found >= LEAST_NODE


def ours(texts: Sequence[str]) -> list[str]:
    assert NODE is not None
    done = subprocess.run(
        [NODE, str(HERE / "print_html.mjs")],
        input=json.dumps(list(texts)),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


def theirs(texts: Sequence[str]) -> list[str]:
    """CommonMark with tables, HTML as text."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").enable("strikethrough")
    return [reader.render(text) for text in texts]


def plain(html: str) -> str:
    """Without the white space beside tags of blocks, which means nothing outside code."""
    parts = re.split(r"(<pre>.*?</pre>)", html, flags=re.DOTALL)
    return "".join(
        x if x.startswith("<pre>") else TAG.sub(r"\1", x).strip("\n") for x in parts
    ).strip()


def different(texts: Sequence[str]) -> list[int]:
    """Places of the texts that are not the same."""
    pairs = zip(ours(texts), theirs(texts), strict=True)
    return [i for i, (a, b) in enumerate(pairs) if plain(a) != plain(b)]
