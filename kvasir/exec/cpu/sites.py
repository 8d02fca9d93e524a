"""Where a lowered program has linears, and in which variants the native core can compute them.

A *site* is a phase of linears alone: it is timed as one. Sites of one shape (layouts, sizes, what
follows) are layers of a model, so that they can try several variants in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from kvasir import _native
from kvasir.exec.cpu.codes import LAYOUT_CODES
from kvasir.exec.cpu.lower import Lowered
from kvasir.exec.cpu.records import Record
from kvasir.exec.cpu.weights import NativeWeight

CLASS_ENDS: tuple[int, ...] = _native.ROW_CLASS_ENDS
N_CLASSES = len(CLASS_ENDS) + 1
_LAYOUTS = {code: name for name, code in LAYOUT_CODES.items()}
_ROWS = ("T", "R")


class Site(msgspec.Struct, frozen=True):
    phase: int
    """Its place among the phases of a step."""
    shape: str
    rows_of: str
    """What counts its rows: "T" tokens, "R" logit rows."""
    weights: tuple[int, ...]
    """Ids of its matrices."""
    variants: tuple[tuple[int, ...], ...]
    """By class of rows; the first is the one that is used where nothing was measured."""


def row_class(rows: int) -> int:
    """Number of the class that so many rows are in, 1 or more."""
    return sum(rows > end for end in CLASS_ENDS)


def class_name(number: int) -> str:
    """ "1", "2-4" … and the last "65-"."""
    first = 1 if number == 0 else CLASS_ENDS[number - 1] + 1
    if number == len(CLASS_ENDS):
        return f"{first}-"
    end = CLASS_ENDS[number]
    return str(first) if first == end else f"{first}-{end}"


def sites_of(lowered: Lowered, weights: Sequence[NativeWeight], level: str) -> tuple[Site, ...]:
    """``weights``: by id. Only those that have a choice in some class."""
    of_layout: dict[int, list[list[int]]] = {}
    found = []
    for place, (_, group) in enumerate(groupby(lowered.records, lambda record: record.phase)):
        records = list(group)
        if any(x.kind != "linear" or x.rows_of not in _ROWS for x in records):
            continue
        ids = tuple(record.weights[0] for record in records)
        layouts = {weights[i][1] for i in ids}
        for layout in layouts - of_layout.keys():
            of_layout[layout] = [
                _native.variants_for(level, layout, number) for number in range(N_CLASSES)
            ]
        variants = tuple(
            tuple(v for v in of_layout[min(layouts)][n] if _has(of_layout, layouts, n, v))
            for n in range(N_CLASSES)
        )
        if max(map(len, variants)) > 1:
            rows_of = "R" if records[0].tail else "T"
            if (
                rows_of == "R"
            ):  # logits are computed in tiles: no call has the rows of the last class
                variants = (*variants[:-1], variants[-1][:1])
            shape = _shape(records, weights)
            found.append(Site(place, shape, rows_of, ids, variants))
    return tuple(found)


def _has(of_layout: dict[int, list[list[int]]], layouts: set[int], n: int, variant: int) -> bool:
    return all(variant in of_layout[layout][n] for layout in layouts)


def _shape(records: Sequence[Record], weights: Sequence[NativeWeight]) -> str:
    """ "q4m 960x576+q6k 320x576 add": layouts, columns and elements, and epilogues of those that
    have one."""
    parts = []
    for record in records:
        _, layout, n, k, _ = weights[record.weights[0]]
        parts.append(f"{_LAYOUTS[layout]} {n}x{k}")
    ends = sorted({f"{x.numbers['epilogue']}" for x in records if x.numbers.get("epilogue")})
    return " ".join(["+".join(parts), *(f"e{end}" for end in ends)])
