"""What a disk does to a file now and then."""

from __future__ import annotations

from pathlib import Path

from kvasir.exec.disk.segment import Segment


def damage(path: Path) -> None:
    """One bit in every third block."""
    segment = Segment.open(path)
    segment.close()
    data = bytearray(path.read_bytes())
    for place in list(segment.places.values())[::3]:
        data[place.offset + place.length // 2] ^= 1
    path.write_bytes(data)
