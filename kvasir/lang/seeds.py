"""Seeds from places in a program: whatever runs first, a call draws the same."""

from __future__ import annotations

import hashlib
import struct

Path = tuple[int, ...]
"""Of a branch: for each fork on the way to it, which of its parent's forks, and which branch of
that. Of a call one number more: which of its branch's."""


def seed_of(seed: int, path: Path) -> int:
    """Unsigned 64 bit. ``seed``: of the program."""
    data = struct.pack(f"<Q{len(path)}Q", seed % 2**64, *path)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
