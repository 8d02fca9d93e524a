"""Attributes of an op as fields of its record."""

from __future__ import annotations

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
