"""Rows of a tensor as blocks of one of GGUF's formats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import ModelError
from kvasir.formats.types import STORED, SUPER
from kvasir.quantize.blocks import BLOCK, ENCODERS
from kvasir.quantize.kpacking import K_ENCODERS
from kvasir.quantize.statistics import Vector
from kvasir.quantize.target import AnyRows, MadeTensor, Matrix

BLOCK_FORMATS = (*ENCODERS, *K_ENCODERS)
_CHUNK = 1 << 16
"""Elements that are encoded at once: with all that is made of them they stay in the cache."""

_TINY = np.float32(2.0**-30)
"""A hundredth of the least number of f16, which no scale says: zero, whose squares are numbers."""
_LEAST = np.float32(2.0**-30)
"""Of the largest mean square: what no text met may be met yet."""


class Blocks(AnyRows, frozen=True, eq=False):
    """Blocks of ``format``, one of ``BLOCK_FORMATS``."""

    format: str
    inputs: Vector | None = None
    """Mean squares [K] of what columns meet."""

    @property
    def name(self) -> str:
        return f"gguf:{self.format}"

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        return (MadeTensor(tensor, self.format, shape, STORED[self.format].n_bytes(shape)),)

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        step = max(1, _CHUNK // rows.shape[1])
        runs = (rows[at : at + step] for at in range(0, len(rows), step))
        return (b"".join(map(self._encoded, runs)),)

    def _encoded(self, rows: Matrix) -> bytes:
        is_super = self.format in K_ENCODERS
        shape = -1, SUPER if is_super else BLOCK
        x = rows.reshape(shape)
        if is_super or self.inputs is not None:
            x = np.where(np.abs(x) < _TINY, np.float32(0), x)
        inputs = None if self.inputs is None else np.tile(self.inputs, len(rows)).reshape(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            if is_super:
                data = K_ENCODERS[self.format](x, inputs)
                heads = self._heads(data)
            else:
                head, codes = ENCODERS[self.format](x, inputs)
                heads = head.astype("<f2")
                data = np.concatenate([heads.view(np.uint8), codes], axis=1)
        if not np.isfinite(heads).all():
            raise ModelError(
                f"weights up to {np.abs(rows).max():g} need a scale beyond the largest f16 number, "
                f"which {self.format} has: take another method"
            )
        return data.tobytes()

    def _heads(self, data: NDArray[np.uint8]) -> Matrix:
        """Scales of super-blocks, which lie first or last."""
        first = self.format in ("Q4_K", "Q5_K")
        n = 4 if first or self.format == "Q2_K" else 2
        heads = np.ascontiguousarray(data[:, :n] if first else data[:, -n:])
        return heads.view("<f2").astype(np.float32)


Squares = Callable[[str], Vector | None]
"""Of a tensor, the mean squares [K] of what its columns meet."""


class ImportantRows:
    """``Blocks`` of one tensor, whose inputs are asked for when it is written."""

    def __init__(self, tensor: str, format: str, squares: Squares) -> None:
        self._tensor, self._squares = tensor, squares
        self._blocks = Blocks(format)
        self._format = format

    @property
    def name(self) -> str:
        return self._blocks.name

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        return self._blocks.targets(tensor, shape)

    def begin(self) -> None:
        squares = self._squares(self._tensor)
        self._blocks = Blocks(self._format, None if squares is None else _bounded(squares))

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        inputs = self._blocks.inputs
        if inputs is not None and len(inputs) != rows.shape[1]:
            raise ModelError(
                f"tensor '{self._tensor}' has rows of {rows.shape[1]}, and squares of "
                f"{len(inputs)} inputs: the imatrix is another model's"
            )
        return self._blocks.encode(rows)

    def end(self) -> None:
        self._blocks = Blocks(self._format)


def _bounded(squares: Vector) -> Vector:
    """By a power of two, which changes no bit of a block, the largest below 1."""
    most = np.frexp(squares.max())[1]
    return np.asarray(np.maximum(np.ldexp(squares, -most), _LEAST), np.float32)
