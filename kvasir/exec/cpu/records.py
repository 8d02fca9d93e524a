"""The flat records that the native core replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir.exec.cpu.codes import BUFFER, DTYPE_CODES, KIND_CODES, RECORD, ROWS_OF_CODES

ROWS_OF = {"T": "tokens", "R": "logits", "P": "pairs"}
"""What the symbols of a program count."""
_ABSENT = -1


class Record(msgspec.Struct, frozen=True):
    """One native op. Buffers and weights are ids; ``numbers`` are other fields of the native
    record, by name. Which of them a kind reads stands with its struct in native/program/ops."""

    kind: str
    phase: int
    rows_of: str
    tail: bool
    ins: tuple[int, ...] = ()
    outs: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    numbers: Mapping[str, int | float] = msgspec.field(default_factory=dict)


class Buffer(msgspec.Struct, frozen=True):
    """Rows of ``columns`` elements in the arena."""

    offset: int
    dtype: str
    columns: int
    block: int
    max_rows: int


def pack_records(records: Sequence[Record]) -> NDArray[np.uint8]:
    """The records as bytes, in order. Raises KeyError for a kind or a number that no record has,
    ValueError for more ids than it has, TypeError for a part of an integer."""
    array = np.zeros(len(records), RECORD)
    for slot, record in zip(array, records, strict=True):
        slot["kind"] = KIND_CODES[record.kind]
        slot["phase"] = record.phase
        slot["rows_of"] = ROWS_OF_CODES[ROWS_OF[record.rows_of]]
        slot["tail"] = record.tail
        for name in ("ins", "outs", "weights"):
            ids = getattr(record, name)
            slot[name] = [*ids, *[_ABSENT] * (len(slot[name]) - len(ids))]
        for name, value in record.numbers.items():
            if RECORD[name].kind == "i" and not isinstance(value, int):
                raise TypeError(f"{record.kind}: {name} is {value!r}, expected an integer")
            slot[name] = value
    return array.view(np.uint8)


def pack_buffers(buffers: Sequence[Buffer]) -> NDArray[np.uint8]:
    """The buffer table as bytes."""
    array = np.zeros(len(buffers), BUFFER)
    for slot, buffer in zip(array, buffers, strict=True):
        slot["offset"] = buffer.offset
        slot["dtype"] = DTYPE_CODES[buffer.dtype]
        slot["columns"] = buffer.columns
        slot["block"] = buffer.block
        slot["max_rows"] = buffer.max_rows
    return array.view(np.uint8)
