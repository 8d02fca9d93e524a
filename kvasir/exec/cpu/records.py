"""The flat records that the native core replays; field for field those of
native/program/program.h."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = np.dtype(
    [
        ("kind", "<i4"),
        ("phase", "<i4"),
        ("rows_of", "<i4"),
        ("tail", "<i4"),
        ("ins", "<i4", 3),
        ("outs", "<i4", 3),
        ("weights", "<i4", 3),
        ("i", "<i4", 10),
        ("f", "<f4", 3),
    ]
)
BUFFER = np.dtype(
    [("offset", "<i8"), ("dtype", "<i4"), ("columns", "<i4"), ("block", "<i4"), ("max_rows", "<i4")]
)

KINDS = {
    "embed": 0,
    "norm": 1,
    "cast": 2,
    "linear": 3,
    "rope_write": 4,
    "attention": 5,
    "add": 6,
    "scale": 7,
    "gather_rows": 8,
    "route": 9,
    "group_pairs": 10,
    "expert_linear": 11,
    "combine": 12,
    "sample": 13,
}
ROWS_OF = {"T": 0, "R": 1, "P": 2}
DTYPES = {"f32": 0, "bf16": 1, "q8": 2, "i32": 3}
ACTS = {"none": 0, "silu": 1, "gelu_tanh": 2, "gelu": 3}
EPILOGUES = {"none": 0, "add": 1, "gated": 2}


@dataclass(frozen=True, slots=True)
class Record:
    """One native op. Buffers and weights are ids, -1 absent; ``ints`` and ``floats`` by kind:

    embed (scale) · norm, rope_write (eps) · linear: column offset, epilogue, activation ·
    rope_write: -, -, -, layer, heads, rotary size, neox, table · attention: -, -, -, layer, heads,
    window (scale, softcap) · scale (factor, softcap) · route, group_pairs: experts, k, normalize ·
    expert_linear: -, epilogue, activation, reads pairs, experts · combine: -, k
    """

    kind: str
    phase: int
    rows_of: str
    tail: bool
    ins: tuple[int, ...] = ()
    outs: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Buffer:
    """Rows of ``columns`` elements in the arena."""

    offset: int
    dtype: str
    columns: int
    block: int
    max_rows: int


def _padded(values: Sequence[Any], size: int, filler: Any) -> list[Any]:
    return [*values, *[filler] * (size - len(values))]


def pack_records(records: Sequence[Record]) -> NDArray[np.uint8]:
    """The records as bytes, in order."""
    array = np.zeros(len(records), RECORD)
    for slot, record in zip(array, records, strict=True):
        slot["kind"] = KINDS[record.kind]
        slot["phase"] = record.phase
        slot["rows_of"] = ROWS_OF[record.rows_of]
        slot["tail"] = record.tail
        slot["ins"] = _padded(record.ins, 3, -1)
        slot["outs"] = _padded(record.outs, 3, -1)
        slot["weights"] = _padded(record.weights, 3, -1)
        slot["i"] = _padded(record.ints, 10, 0)
        slot["f"] = _padded(record.floats, 3, 0.0)
    return array.view(np.uint8)


def pack_buffers(buffers: Sequence[Buffer]) -> NDArray[np.uint8]:
    """The buffer table as bytes."""
    rows = [(b.offset, DTYPES[b.dtype], b.columns, b.block, b.max_rows) for b in buffers]
    return np.array(rows, BUFFER).view(np.uint8)
