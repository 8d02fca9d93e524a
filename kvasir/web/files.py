"""The page's files as they are sent: one version of all of them, and each packed once."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
VERSION = b"{{version}}"
"""In the index: the folder of the other files, whose modules name each other relatively."""
VERSION_DIGITS = 16
MEDIA = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


class WebFile(NamedTuple):
    media: bytes
    body: bytes
    packed: bytes
    """The same by gzip."""


class WebPage(NamedTuple):
    version: str
    """Of all files: who has those of one version has no others."""
    home: WebFile
    """The index."""
    files: Mapping[str, WebFile]
    """By their paths below the version's folder."""


def read_page(folder: Path = FOLDER) -> WebPage:
    """Takes some tens of milliseconds, most of them to pack."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in MEDIA)
    bodies = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    digest = sha256()
    for name, body in bodies.items():
        digest.update(b"%b\0%d\0%b" % (name.encode(), len(body), body))
    version = digest.hexdigest()[:VERSION_DIGITS]
    index = bodies.pop(INDEX).replace(VERSION, version.encode())
    return WebPage(version, _file(INDEX, index), {x: _file(x, y) for x, y in bodies.items()})


def _file(name: str, body: bytes) -> WebFile:
    return WebFile(MEDIA[Path(name).suffix], body, gzip.compress(body, 9, mtime=0))
