"""The tower of images on the native core: one tile at a time, piece by piece, in a memory of its
own."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvasir.core.errors import KvasirError
from kvasir.core.sizes import EngineSizes
from kvasir.core.tiles import Media
from kvasir.exec.canvas import TileRows, paved
from kvasir.exec.cpu.kvmem import LANES, KVMemory
from kvasir.exec.cpu.lower import Lowered, lower
from kvasir.exec.cpu.native import Machine, Memory
from kvasir.exec.inputs import StepArrays
from kvasir.exec.tiles import encoder_inputs, joined, placed
from kvasir.ir.bundle import GIVEN_INPUTS, PATCHES, TARGET, Tower
from kvasir.ir.phases import phases
from kvasir.ir.pieces import TowerPieces
from kvasir.ir.program import FloatArray, Program
from kvasir.ir.tiles import stage_rows

Arrays = dict[str, NDArray[np.generic]]
RowSteps = Generator[None, None, list[FloatArray]]


@dataclass(frozen=True, slots=True)
class LoweredTower:
    tower: Tower
    programs: tuple[Lowered, ...]
    """In the order of ``Tower.programs``."""

    @classmethod
    def of(cls, tower: Tower) -> LoweredTower:
        tile, n = tower.tile, len(tower.encoders)
        rows = *[tile.n_encoded] * n, tile.n_tokens, *([1] if tower.newline else [])
        both = zip(tower.programs, rows, strict=True)
        programs = (lower(x, max_tokens=n, logits_tile=1)[TARGET] for x, n in both)
        return cls(tower, tuple(programs))


class NativeTower:
    """Rows of a tile depend on its pixels alone: every run has the same rows, in one order. What is
    begun is in the one memory: who begins another tile cannot go on with it."""

    def __init__(self, lowered: LoweredTower, machine: Machine, pieces: TowerPieces) -> None:
        self._tower = tower = lowered.tower
        self._pieces = pieces
        n = len(tower.encoders)
        sizes = [_sizes(tower, bool(tower.window) and not i % 2) for i in range(n)]
        n_alone = tower.tile.n_tokens, *([1] if tower.newline else [])
        sizes += [EngineSizes(1, LANES, 1, x, 1, LANES) for x in n_alone]
        room = _TowerRoom.of(lowered, sizes)
        made = [
            _Rows(program, each, machine, room.memory(program, size))
            for program, each, size in zip(tower.programs, lowered.programs, sizes, strict=True)
        ]
        self._programs, self._n_encoders = made, n

    def rows(self, media: Media) -> TileRows:
        """f32 [n_rows, columns of an embedding], and behind them those of ``deep_media``."""
        if media.canvas is None:
            return (yield from self._of_tile(media))
        types, alone = {"types": np.zeros(1, np.int32)}, np.ones(1, np.int32)
        (newline,) = yield from self._run(len(self._programs) - 1, types, alone)
        return (yield from paved(media, media.canvas, self._tower.tile, self._of_tile, newline))

    def _of_tile(self, media: Media) -> TileRows:
        tower = self._tower
        given = encoder_inputs(tower, media)
        found: list[FloatArray] = [given[PATCHES]]
        for i, lengths in enumerate(stage_rows(tower, media)):
            found = yield from self._run(i, {**given, PATCHES: found[0]}, lengths)
        folded = [joined(rows, tower.tile) for rows in found]
        of = dict(zip(tower.connector.inputs, folded, strict=True))
        alone = np.array([media.n_rows], np.int32)
        found = yield from self._run(self._n_encoders, of, alone)
        return placed(np.concatenate(found, axis=1), tower, media)

    def _run(
        self, i: int, inputs: Mapping[str, NDArray[np.generic]], lengths: NDArray[np.int32]
    ) -> RowSteps:
        return self._programs[i].run(inputs, lengths, self._pieces.parts(i, lengths))


_ARRAYS = {"positions": "pos"}
"""Inputs that have another name among the arrays of a step."""


def _sizes(tower: Tower, is_windowed: bool) -> EngineSizes:
    """Of a step with the largest tile: one sequence, or one for each window. A window of any tokens
    takes no more blocks than tokens."""
    n, tile = tower.tile.n_encoded, tower.tile
    length = min(n, tower.window**2 * tile.fold**2) if is_windowed else n
    per_sequence = -(-length // LANES)
    n_blocks = tile.n_tokens if is_windowed else per_sequence
    n_blocks = max(n_blocks, -(-n // LANES))
    n_seqs = tile.n_tokens if is_windowed else 1
    return EngineSizes(1, per_sequence * LANES, n_seqs, n, n_blocks, LANES)


class _Rows:
    """A program over f32 rows of sequences that are a whole step."""

    def __init__(
        self,
        program: Program,
        lowered: Lowered,
        machine: Machine,
        memory: Memory,
    ) -> None:
        self._arrays: Arrays = StepArrays(memory.sizes, inputs=program.inputs).arrays
        self._arrays["parent"][:] = -1
        self._native = memory.program(machine, program, lowered, self._arrays, 1)
        if self._native.phases != max(phases(program)) + 1:
            raise KvasirError(f"{program.name} has other phases when it is lowered")
        given = {name: program.values[name] for name in program.inputs if name in GIVEN_INPUTS}
        self._given: Arrays = {
            name: memory.floats(lowered, name)
            if x.dtype == "f32"
            else memory.integers(lowered, name)
            for name, x in given.items()
        }
        self._outs = [memory.floats(lowered, name) for name in program.outputs]

    def run(
        self,
        inputs: Mapping[str, NDArray[np.generic]],
        lengths: NDArray[np.int32],
        parts: Sequence[int],
    ) -> RowSteps:
        """Of ``inputs`` those that the program has, [rows, ...] each, of sequences of ``lengths``
        rows, which see each other; its outputs. Stops before each part of each phase."""
        n = int(lengths.sum())
        self._lay_out(lengths)
        for name, rows in inputs.items():
            into = self._given.get(name, self._arrays.get(_ARRAYS.get(name, name)))
            if into is not None:
                into[:n] = rows.reshape(into[:n].shape)
        for phase, n_parts in enumerate(parts):
            for part in range(n_parts):
                yield
                self._native.run(n, len(lengths), 0, piece=(phase, part, n_parts))
        return [out[:n].copy() for out in self._outs]

    def _lay_out(self, lengths: NDArray[np.int32]) -> None:
        """Sequences behind one another, in blocks that follow one another."""
        arrays, n_seqs, n = self._arrays, len(lengths), int(lengths.sum())
        begins = np.concatenate([[0], np.cumsum(lengths)])
        arrays["seq_begin"][: n_seqs + 1] = begins
        arrays["seq"][:n] = np.repeat(np.arange(n_seqs), lengths)
        arrays["store"][:n] = np.arange(n) - np.repeat(begins[:-1], lengths)
        if "ends" in arrays:
            arrays["ends"][:n] = np.repeat(lengths, lengths)
            n_blocks = -(-lengths // LANES)
            firsts = np.concatenate([[0], np.cumsum(n_blocks)])[:-1]
            most = int(n_blocks.max())
            arrays["tables"][0, :n_seqs, :most] = firsts[:, None] + np.arange(most)


@dataclass(frozen=True, slots=True)
class _TowerRoom:
    """Memory that the programs of a tower use one after the other."""

    arena: NDArray[np.uint8]
    kv: KVMemory
    """Of one layer: it is read before the next is written."""

    @classmethod
    def of(cls, lowered: LoweredTower, sizes: Sequence[EngineSizes]) -> _TowerRoom:
        arena = np.zeros(max(x.arena_bytes for x in lowered.programs), np.uint8)
        specs = {replace(x, layer=0) for each in lowered.tower.encoders for x in each.kv}
        if len(specs) != 1:
            raise KvasirError(f"layers of a tower that keep different entries: {specs}")
        largest = max(sizes, key=lambda x: x.n_blocks)
        return cls(arena, KVMemory.allocate(tuple(specs), largest))

    def memory(self, program: Program, sizes: EngineSizes) -> Memory:
        n_layers = 1 + max((x.layer for x in program.kv), default=-1)
        kv = replace(self.kv, layout=np.repeat(self.kv.layout, n_layers))
        return Memory(sizes, kv, self.arena)
