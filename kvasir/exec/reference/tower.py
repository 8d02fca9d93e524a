"""The tower of images in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import KvasirError
from kvasir.core.tiles import Media
from kvasir.exec.reference.interpreter import interpret
from kvasir.ir.bundle import IS_MEDIA, PATCHES, Tower
from kvasir.ir.ops import KvView, Rows
from kvasir.ir.program import FloatArray, Program
from kvasir.ir.tiles import joined, patches


@dataclass(slots=True)
class _Alone:
    """The ``Env`` of one sequence whose tokens all see each other."""

    constants: Mapping[str, FloatArray]
    entries: dict[int, tuple[FloatArray, FloatArray]] = field(default_factory=dict)

    def write_kv(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        self.entries[layer] = k, v

    def view(self, layer: int, token: int, end: int = 0) -> KvView:
        k, v = self.entries[layer]
        n = end or token + 1
        return KvView(np.arange(n), k[:n], v[:n])

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
        """f32 [n_tokens, columns of an embedding]."""
        tile = self.tower.tile
        at = np.array(self.tower.positions)
        n, places = tile.n_encoded, np.arange(tile.n_encoded)
        given: dict[str, Rows] = {
            "positions": at,
            "ends": np.full(n, n, np.int32),
            "types": np.zeros(n, np.int32),
            IS_MEDIA: (places < tile.n_first).astype(np.int32),
        }
        rows = self._run(self.tower.encoder, patches(media.pixels, tile), given)
        return self._run(self.tower.connector, joined(rows, tile), {})

    def _run(self, program: Program, rows: FloatArray, given: Mapping[str, Rows]) -> FloatArray:
        inputs = {PATCHES: rows, **given}
        values = interpret(program, inputs, self.weights, _Alone(program.constants))
        found = values[program.outputs[0]]
        if not isinstance(found, np.ndarray):
            raise KvasirError(f"{program.name} gives rows of another type than f32")
        return found
