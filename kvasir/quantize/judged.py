"""How far a model is from its origin, in the file itself: room that is left when it is written, and
filled once it is judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvasir.core.errors import ModelError
from kvasir.formats.safetensors import SINGLE_NAME

Judge = Callable[[Path], str]
"""What is said of a model, at most ``SIZE`` characters of ASCII. Raises ModelError for one that is
not good enough."""
KEY = "quantize.divergence"
SIZE = 64
ROOM = "not judged".ljust(SIZE)


def fill_in(made: Path, said: str) -> None:
    """Into the metadata of a file or of a folder's weights. Raises ModelError."""
    path = made / SINGLE_NAME if made.is_dir() else made
    with path.open("r+b") as stream:
        head, before = b"", ROOM.encode()
        while before not in head:
            more = stream.read(1 << 16)
            if not more:
                raise ModelError(f"{path} has no room for what its judge says")
            head += more
        stream.seek(head.index(before))
        stream.write(said[:SIZE].ljust(SIZE).encode("ascii"))
