"""The tower of images on the native core: one tile at a time, in a memory of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvasir.core.sizes import EngineSizes
from kvasir.core.tiles import Media
from kvasir.exec.cpu.kvmem import LANES, KVMemory
from kvasir.exec.cpu.lower import Lowered, lower
from kvasir.exec.cpu.native import Machine, Memory
from kvasir.exec.inputs import StepArrays
from kvasir.ir.bundle import GIVEN_INPUTS, PATCHES, TARGET, Tower
from kvasir.ir.program import FloatArray, KVSpec, Program
from kvasir.ir.tiles import encoder_inputs, joined, patches


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
        self._tower = tower = lowered.tower
        self._encoder = _Rows(tower.encoder, lowered.encoder, machine, tower.tile.n_encoded)
        self._connector = _Rows(tower.connector, lowered.connector, machine, tower.tile.n_tokens)

    def rows(self, media: Media) -> FloatArray:
        """f32 [n_tokens, columns of an embedding], and behind them those of ``deep_media``."""
        tower, given = self._tower, encoder_inputs(self._tower, media)
        found = self._encoder.run({PATCHES: patches(media, tower.tile), **given})
        folded = [joined(rows, tower.tile) for rows in found]
        of = dict(zip(tower.connector.inputs, folded, strict=True))
        return np.concatenate(self._connector.run(of), axis=1)


_ARRAYS = {"positions": "pos"}
"""Inputs that have another name among the arrays of a step."""


class _Rows:
    """A program over f32 rows, of one sequence of at most ``n`` tokens that is a whole step."""

    def __init__(self, program: Program, lowered: Lowered, machine: Machine, n: int) -> None:
        n_blocks = -(-n // LANES)
        sizes = EngineSizes(1, n_blocks * LANES, 1, n, n_blocks, LANES)
        self._arrays = _one_sequence(StepArrays(sizes, inputs=program.inputs).arrays, n)
        arena = np.zeros(lowered.arena_bytes, np.uint8)
        memory = Memory(sizes, _shared(program.kv, sizes), arena)
        self._native = memory.program(machine, program, lowered, self._arrays, 1)
        given = {name: program.values[name] for name in program.inputs if name in GIVEN_INPUTS}
        self._given: dict[str, NDArray[np.generic]] = {
            name: memory.floats(lowered, name) if x.dtype == "f32" else memory.integers(lowered, name)
            for name, x in given.items()
        }
        self._outs = [memory.floats(lowered, name) for name in program.outputs]

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> list[FloatArray]:
        """Of ``inputs`` those that the program has, [tokens, ...] each; its outputs."""
        n = 0
        for name, rows in inputs.items():
            into = self._given.get(name, self._arrays.get(_ARRAYS.get(name, name)))
            if into is not None:
                n = len(rows)
                into[:n] = rows.reshape(into[:n].shape)
        self._arrays["seq_begin"][:] = 0, n
        self._native.run(n, 1, 0)
        return [out[:n].copy() for out in self._outs]


def _shared(kv: Sequence[KVSpec], sizes: EngineSizes) -> KVMemory:
    """One memory for all layers: each is read before the next is written."""
    if len({replace(spec, layer=0) for spec in kv}) != 1:
        return KVMemory.allocate(kv, sizes)
    memory = KVMemory.allocate(kv[:1], sizes)
    return replace(memory, layout=np.repeat(memory.layout, len(kv)))


def _one_sequence(
    arrays: dict[str, NDArray[np.generic]], n: int
) -> dict[str, NDArray[np.generic]]:
    """Of at most ``n`` tokens, in blocks that follow one another."""
    arrays["store"][:] = np.arange(n)
    arrays["parent"][:] = -1
    arrays["tables"][:] = np.arange(-(-n // LANES))
    return arrays
