"""Packs a model's weights for the native kernels: from file rows to column tiles, without changing
a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.exec.cpu.codes import LAYOUT_CODES
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.exec.cpu.lower import WeightUse
from kvasir.exec.cpu.packed import Keeping, PackedCache
from kvasir.exec.cpu.packing import Packing, packing_of
from kvasir.exec.cpu.pages import LINE, WeightMemory
from kvasir.exec.cpu.widen import TILE, widened_tiles
from kvasir.formats.decode import decode, split
from kvasir.formats.types import FORMATS
from kvasir.ir.program import Weight
from kvasir.weights.bind import Binding

SLICE = 1 << 20
"""Elements decoded at a time where Python decodes."""

Bytes = NDArray[np.uint8]
NativeWeight = tuple[Bytes, int, int, int, int]
"""(packed bytes, layout, N, K, tiles of one expert)"""
RELEASE_BYTES = 64 << 20
"""Packed bytes after which the pages of the file that were read are given back."""


class PackedShape(msgspec.Struct, frozen=True):
    """What a packed weight looks like, before it is packed."""

    layout: str
    n: int
    k: int
    tiles: int
    """Of one expert."""
    experts: int
    n_bytes: int

    def native(self, packed: Bytes) -> NativeWeight:
        return packed, LAYOUT_CODES[self.layout], self.n, self.k, self.tiles


class Packed(msgspec.Struct, frozen=True):
    """The weights of a native program, in the order of its uses."""

    weights: list[NativeWeight]
    keeping: Keeping | None = None
    """What is left to do: keep them on disk."""


class Packer(msgspec.Struct, frozen=True):
    """Packs the weights that a lowered program uses; ``weights`` are the program's, with their
    layouts."""

    pool: _native.Pool
    weights: Mapping[str, Weight]
    binding: Binding
    huge: bool = False
    """Whether packed weights lie in huge pages."""

    def pack_all(self, uses: Sequence[WeightUse], cache: PackedCache | None) -> Packed:
        """Every weight, from ``cache`` when it has them; else packed now, to be kept there."""
        shapes = [self.shape(use) for use in uses]
        source, n_bytes = self.binding.source, sum(shape.n_bytes for shape in shapes)
        if cache is None or source is None or n_bytes < cache.min_bytes:
            return Packed(_native_weights(shapes, self._packed(uses, shapes)))
        packing = self._packing(source.content_hash, uses, shapes)
        found = cache.load(packing, self.pool, huge=self.huge)
        if found is not None:
            return Packed(_native_weights(shapes, found))
        arrays = self._packed(uses, shapes)
        source.check_unchanged()  # else they would be kept under the hash of other bytes
        return Packed(_native_weights(shapes, arrays), Keeping(cache, packing, arrays))

    def shape(self, use: WeightUse) -> PackedShape:
        """Raises ValueError when weights that are packed together have different layouts."""
        weights = [self.weights[name] for name in use.names]
        if use.kind == "vector":
            n = sum(weight.n_elements for weight in weights)
            return PackedShape("f32", n, 1, 1, 1, 4 * n)
        layouts = {weight.layout for weight in weights}
        if len(layouts) > 1:
            raise ValueError(
                f"{', '.join(use.names)} have different layouts: {', '.join(sorted(layouts))}"
            )
        layout, shape = layouts.pop(), weights[0].shape
        experts, (n, k) = (1 if len(shape) == 2 else shape[0]), shape[-2:]
        tiles = -(-n // TILE) * len(weights)
        n_bytes = experts * tiles * _native.tile_bytes(LAYOUT_CODES[layout], k)
        return PackedShape(layout, n * len(weights), k, tiles, experts, n_bytes)

    def pack(self, use: WeightUse, out: Bytes) -> None:
        """``out``: zeros, as many as its shape says."""
        if use.kind == "vector":
            out[:] = self._vector(use.names)
        else:
            self._matrix(use, out)

    def _packing(
        self, content_hash: str, uses: Sequence[WeightUse], shapes: Sequence[PackedShape]
    ) -> Packing:
        names = [name for use in uses for name in use.names]
        parts = [(self.weights[name], self.binding[name].format) for name in names]
        sizes = [shape.n_bytes for shape in shapes]
        return packing_of(content_hash, (list(uses), parts, shapes), sizes)

    def _packed(self, uses: Sequence[WeightUse], shapes: Sequence[PackedShape]) -> list[Bytes]:
        arrays: list[Bytes] = []
        unreleased, n_bytes = 0, sum(-(-shape.n_bytes // LINE) * LINE for shape in shapes)
        memory = WeightMemory(n_bytes, huge=self.huge)
        for use, shape in zip(uses, shapes, strict=True):
            arrays.append(memory.take(shape.n_bytes))
            self.pack(use, arrays[-1])
            unreleased += arrays[-1].size
            if unreleased >= RELEASE_BYTES:
                self.binding.release()
                unreleased = 0
        self.binding.release()
        return arrays

    def _vector(self, names: tuple[str, ...]) -> Bytes:
        values = np.concatenate([self.binding[name].dequantize() for name in names], axis=-1)
        return np.ascontiguousarray(values.reshape(-1), np.float32).view(np.uint8)

    def _matrix(self, use: WeightUse, packed: Bytes) -> None:
        shape, step = self.shape(use), len(use.names)
        parts = packed.reshape(shape.experts, -1)
        n = shape.n // step
        for position, name in enumerate(use.names):
            raw = self.binding[name].raw()
            rows = raw.data.reshape(shape.experts * n, -1)
            for expert in range(shape.experts):
                target = PackTarget(self.pool, shape.layout, shape.k, parts[expert], position, step)
                pack_rows(target, raw.format, rows[expert * n : (expert + 1) * n])


def _native_weights(shapes: Sequence[PackedShape], arrays: Sequence[Bytes]) -> list[NativeWeight]:
    return [shape.native(packed) for shape, packed in zip(shapes, arrays, strict=True)]


class PackTarget(msgspec.Struct, frozen=True):
    """Where the tiles of one matrix go: tile t to ``first`` + t * ``step``."""

    pool: _native.Pool
    layout: str
    k: int
    out: Bytes
    first: int
    step: int


def pack_rows(target: PackTarget, format_name: str, rows: Bytes) -> None:
    """``rows`` [N, bytes of a row] in a file format."""
    if _native.packs(format_name, LAYOUT_CODES[target.layout]):
        _native_rows(target, format_name, rows, 0)
        return
    # A slice of rows at a time: what decoding needs beside the packed weight stays small.
    count = max(TILE, SLICE // target.k // TILE * TILE)
    for start in range(0, len(rows), count):
        part = rows[start : start + count]
        if LAYOUTS[target.layout].act == "q8":
            _widened_rows(target, format_name, part, start // TILE)
        else:
            values = decode(format_name, np.ascontiguousarray(part).reshape(-1))
            _native_rows(target, "F32", values.view(np.uint8).reshape(len(part), -1), start // TILE)


def _native_rows(target: PackTarget, format_name: str, rows: Bytes, tile: int) -> None:
    _native.pack_rows(
        target.pool,
        LAYOUT_CODES[target.layout],
        format_name,
        rows.reshape(-1),
        len(rows),
        target.k,
        target.out,
        target.first + tile * target.step,
        target.step,
    )


def _widened_rows(target: PackTarget, format_name: str, rows: Bytes, tile: int) -> None:
    if not FORMATS[format_name].has_integers:
        raise ValueError(f"{format_name} holds no integers, {target.layout} needs them")
    parts = split(format_name, np.ascontiguousarray(rows).reshape(-1))
    tiles = widened_tiles(parts, len(rows), target.k, LAYOUTS[target.layout].mins)
    first = target.first + tile * target.step
    all_tiles = target.out.reshape(-1, tiles.shape[1])
    all_tiles[first : first + len(tiles) * target.step : target.step] = tiles
