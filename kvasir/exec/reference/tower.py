"""The tower of images in NumPy."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import KvasirError
from kvasir.core.tiles import Media
from kvasir.exec.canvas import TileRows, paved
from kvasir.exec.reference.interpreter import interpret
from kvasir.exec.tiles import encoder_inputs, joined, placed
from kvasir.ir.bundle import PATCHES, Tower
from kvasir.ir.ops import KvView, Rows
from kvasir.ir.pieces import TowerPieces
from kvasir.ir.program import FloatArray, Program
from kvasir.ir.tiles import stage_rows


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
    """A program runs whole with the last of its pieces."""

    tower: Tower
    weights: Mapping[str, FloatArray]
    pieces: TowerPieces

    def rows(self, media: Media) -> TileRows:
        """f32 [n_rows, columns of an embedding], and behind them those of ``deep_media``."""
        if media.canvas is None:
            return (yield from self._of_tile(media))
        newline = self.tower.newline
        if newline is None:
            raise KvasirError("a tower without a row for the ends of lines")
        types = {"types": np.zeros(1, np.int32)}
        (row,) = yield from self._run(len(self.tower.programs) - 1, types, np.ones(1, np.int32))
        return (yield from paved(media, media.canvas, self.tower.tile, self._of_tile, row))

    def _of_tile(self, media: Media) -> TileRows:
        tower, given = self.tower, encoder_inputs(self.tower, media)
        found: list[FloatArray] = [given[PATCHES]]
        n_encoders = len(tower.encoders)
        for i, lengths in enumerate(stage_rows(tower, media)):
            found = yield from self._run(i, {**given, PATCHES: found[0]}, lengths)
        folded = [joined(rows, tower.tile) for rows in found]
        of = dict(zip(tower.connector.inputs, folded, strict=True))
        alone = np.array([media.n_rows], np.int32)
        found = yield from self._run(n_encoders, of, alone)
        return placed(np.concatenate(found, axis=1), tower, media)

    def _run(
        self, i: int, inputs: Mapping[str, Rows], lengths: NDArray[np.int32]
    ) -> Generator[None, None, list[FloatArray]]:
        program = self.tower.programs[i]
        for _ in range(sum(self.pieces.parts(i, lengths))):
            yield
        begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
        inputs = {**inputs, "ends": np.repeat(lengths, lengths)}
        values = interpret(program, inputs, self.weights, _Alone(program.constants, begins))
        return [self._floats(program, values[name]) for name in program.outputs]

    def _floats(self, program: Program, rows: Rows) -> FloatArray:
        if not isinstance(rows, np.ndarray):
            raise KvasirError(f"{program.name} gives rows of another type than f32")
        return rows
