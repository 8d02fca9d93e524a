"""What a disk does to a file now and then, and a model whose numbers went bad."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvasir.exec.disk.segment import Segment
from tests.tiny import TinyModel


def damage(path: Path) -> None:
    """One bit in every third block."""
    segment = Segment.open(path)
    segment.close()
    data = bytearray(path.read_bytes())
    for place in list(segment.places.values())[::3]:
        data[place.offset + place.length // 2] ^= 1
    path.write_bytes(data)


def poisoned(model: TinyModel, token: int, value: float) -> TinyModel:
    """``model`` with one ``value`` in the embedding of ``token``."""
    name = "model.embed_tokens.weight"
    rows = model.tensors[name].copy()
    rows[token, 5] = value
    return replace(model, tensors={**model.tensors, name: rows})
