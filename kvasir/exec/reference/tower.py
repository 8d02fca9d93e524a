"""The tower of images in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import KvasirError
from kvasir.core.tiles import Media
from kvasir.exec.reference.interpreter import interpret
from kvasir.ir.bundle import PATCHES, Tower
from kvasir.ir.canvas import paved
from kvasir.ir.ops import KvView, Rows
from kvasir.ir.program import FloatArray, Program
from kvasir.ir.tiles import encoder_inputs, joined, placed, stage_rows


@dataclass(slots=True)
class _Alone:
    """The ``Env`` of sequences whose tokens all see each other."""

    constants: Mapping[str, FloatArray]
    begins: NDArray[np.int64]
    """Of each token the first of its sequence."""
    entries: dict[int, tuple[FloatArray, FloatArray]] = field(default_factory=dict)

    def write_kv(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        self.entries[layer] = k, v

    def view(self, layer: int, token: int, end: int = 0) -> KvView:
        (k, v), begin = self.entries[layer], int(self.begins[token])
        n = end or token + 1 - begin
        return KvView(np.arange(n), k[begin : begin + n], v[begin : begin + n])

    def state(self, layer: int, token: int) -> FloatArray:
        raise KvasirError("a tower keeps no state")

    def sample(self, logits: FloatArray) -> NDArray[np.int32]:
        raise KvasirError("a tower draws nothing")

    def pool(self, rows: FloatArray) -> FloatArray:
        raise KvasirError("a tower pools nothing")


@dataclass(frozen=True, slots=True)
class ReferenceTower:
    tower: Tower
    weights: Mapping[str, FloatArray]

    def rows(self, media: Media) -> FloatArray:
        """f32 [n_rows, columns of an embedding], and behind them those of ``deep_media``."""
        if media.canvas is None:
            return self._of_tile(media)
        newline = self.tower.newline
        if newline is None:
            raise KvasirError("a tower without a row for the ends of lines")
        (row,) = self._run(newline, {"types": np.zeros(1, np.int32)}, np.ones(1, np.int32))
        return paved(media, media.canvas, self.tower.tile, self._of_tile, row)

    def _of_tile(self, media: Media) -> FloatArray:
        tower, given = self.tower, encoder_inputs(self.tower, media)
        found: list[FloatArray] = [given[PATCHES]]
        for program, lengths in zip(tower.encoders, stage_rows(tower, media), strict=True):
            found = self._run(program, {**given, PATCHES: found[0]}, lengths)
        folded = [joined(rows, tower.tile) for rows in found]
        of = dict(zip(tower.connector.inputs, folded, strict=True))
        alone = np.array([media.n_rows])
        return placed(np.concatenate(self._run(tower.connector, of, alone), axis=1), tower, media)

    def _run(
        self, program: Program, inputs: Mapping[str, Rows], lengths: NDArray[np.int32]
    ) -> list[FloatArray]:
        begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
        inputs = {**inputs, "ends": np.repeat(lengths, lengths)}
        values = interpret(program, inputs, self.weights, _Alone(program.constants, begins))
        return [self._floats(program, values[name]) for name in program.outputs]

    def _floats(self, program: Program, rows: Rows) -> FloatArray:
        if not isinstance(rows, np.ndarray):
            raise KvasirError(f"{program.name} gives rows of another type than f32")
        return rows
