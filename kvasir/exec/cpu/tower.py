"""The tower of images on the native core: one tile at a time, in a memory of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.core.sizes import EngineSizes
from kvasir.core.tiles import Media
from kvasir.exec.cpu.kvmem import LANES, KVMemory
from kvasir.exec.cpu.lower import Lowered, lower
from kvasir.exec.cpu.native import Machine, Memory
from kvasir.exec.inputs import StepArrays
from kvasir.ir.bundle import IS_MEDIA, PATCHES, TARGET, Tower, as_bundle
from kvasir.ir.program import FloatArray, Program
from kvasir.ir.tiles import joined, patches


@dataclass(frozen=True, slots=True)
class LoweredTower:
    tower: Tower
    encoder: Lowered
    connector: Lowered

    @classmethod
    def of(cls, tower: Tower) -> LoweredTower:
        n_rows = tower.tile.n_encoded, tower.tile.n_tokens
        both = zip(tower.programs, n_rows, strict=True)
        encoder, connector = (lower(x, max_tokens=n, logits_tile=1)[TARGET] for x, n in both)
        return cls(tower, encoder, connector)

    @property
    def programs(self) -> tuple[Lowered, Lowered]:
        return self.encoder, self.connector


class NativeTower:
    """Rows of a tile depend on its pixels alone: every run has the same rows, in one order."""

    def __init__(self, lowered: LoweredTower, machine: Machine) -> None:
        tower = lowered.tower
        self._tile = tile = tower.tile
        self._encoder = _Rows(tower.encoder, lowered.encoder, machine, tile.n_encoded)
        self._encoder.arrays["pos"][:] = tower.positions
        self._connector = _Rows(tower.connector, lowered.connector, machine, tile.n_tokens)

    def rows(self, media: Media) -> FloatArray:
        """f32 [n_tokens, columns of an embedding]."""
        rows = self._encoder.run(patches(media.pixels, self._tile), self._tile.n_first)
        return self._connector.run(joined(rows, self._tile))


class _Rows:
    """A program from f32 rows to as many f32 rows, of one sequence that is a whole step."""

    def __init__(self, program: Program, lowered: Lowered, machine: Machine, n: int) -> None:
        n_blocks = -(-n // LANES)
        sizes = EngineSizes(1, n_blocks * LANES, 1, n, n_blocks, LANES)
        self.arrays = _whole_step(StepArrays(sizes, inputs=program.inputs).arrays, n)
        arena = np.zeros(lowered.arena_bytes, np.uint8)
        memory = Memory(sizes, KVMemory.allocate(as_bundle(program).kv, sizes), arena)
        self._native = memory.program(machine, program, lowered, self.arrays, 1)
        self._in = memory.floats(lowered, PATCHES)
        self._out = memory.floats(lowered, program.outputs[0])
        has_first = IS_MEDIA in program.inputs
        self._first = memory.integers(lowered, IS_MEDIA) if has_first else None
        self._n = n

    def run(self, rows: FloatArray, n_first: int = 0) -> FloatArray:
        """``n_first``: rows that are made of none."""
        self._in[:] = rows
        if self._first is not None:
            self._first[:] = np.arange(self._n) < n_first
        self._native.run(self._n, 1, 0)
        return self._out.copy()


def _whole_step(arrays: dict[str, NDArray[np.generic]], n: int) -> dict[str, NDArray[np.generic]]:
    """One row of ``n`` tokens, which see each other."""
    arrays["store"][:] = np.arange(n)
    arrays["parent"][:] = -1
    arrays["seq_begin"][:] = 0, n
    arrays["tables"][:] = np.arange(-(-n // LANES))
    if "ends" in arrays:
        arrays["ends"][:] = n
    return arrays
