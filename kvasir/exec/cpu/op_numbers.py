"""Attributes of an op as fields of its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvasir.exec.cpu.codes import ACT_CODES, EPILOGUE_CODES
from kvasir.ir.program import Op


def integers(op: Op, *names: str) -> dict[str, int | float]:
    """Fields of a record that are named as the op's attributes are."""
    return {name: op.integer(name) for name in names}


def floats(op: Op, *names: str) -> dict[str, int | float]:
    return {name: op.number(name) for name in names}


def epilogue(op: Op) -> dict[str, int | float]:
    return {
        "epilogue": EPILOGUE_CODES[op.word("epilogue")],
        "act": ACT_CODES[op.word("act")],
    }


def _sparse(op: Op) -> dict[str, int | float]:
    return {"scale": op.number("deviations"), "act": ACT_CODES[op.word("act")]}


def _of_stream(op: Op, name: str) -> dict[str, int | float]:
    """The first column of the stream with that number."""
    return {"column": op.integer(name) * op.integer("width")}


OF_STREAMS: Mapping[str, Callable[[Op], dict[str, int | float]]] = MappingProxyType(
    {
        "sparse_gate": _sparse,
        "take_columns": lambda op: integers(op, "column"),
        "mix_streams": lambda op: {"column": op.integer("width")},
        "correct_streams": lambda op: _of_stream(op, "active"),
        "add_to_streams": lambda op: _of_stream(op, "first"),
        "match_rows": lambda op: floats(op, "eps"),
    }
)
"""Numbers of the records of ``ir.ops.streams``."""
