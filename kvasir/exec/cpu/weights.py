"""Packs a model's weights for the native kernels: from file rows to column tiles, without changing
a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.exec.cpu.lower import WeightUse
from kvasir.exec.cpu.widen import TILE, widened_tiles
from kvasir.formats.types import FORMATS
from kvasir.ir.layouts import LAYOUTS
from kvasir.ir.program import Weight
from kvasir.weights.bind import Binding

SLICE = 1 << 20
"""Elements decoded at a time where Python decodes."""

Bytes = NDArray[np.uint8]
NativeWeight = tuple[Bytes, int, int, int, int]
"""(packed bytes, layout, N, K, tiles of one expert)"""


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs the weights that a lowered program uses; ``weights`` are the program's, with their
    layouts."""

    pool: _native.Pool
    weights: Mapping[str, Weight]
    binding: Binding

    def pack(self, use: WeightUse) -> NativeWeight:
        if use.kind == "vector":
            return self._vector(use.names)
        layouts = {self.weights[name].layout for name in use.names}
        if len(layouts) > 1:
            raise ValueError(
                f"{', '.join(use.names)} have different layouts: {', '.join(sorted(layouts))}"
            )
        return self._matrix(use.names, layouts.pop())

    def _vector(self, names: tuple[str, ...]) -> NativeWeight:
        values = np.concatenate([self.binding[name].dequantize().reshape(-1) for name in names])
        return (
            np.ascontiguousarray(values, np.float32).view(np.uint8),
            LAYOUTS["f32"].code,
            values.size,
            1,
            1,
        )

    def _matrix(self, names: tuple[str, ...], layout: str) -> NativeWeight:
        shape = self.weights[names[0]].shape
        experts, (n, k) = (1 if len(shape) == 2 else shape[0]), shape[-2:]
        step, code = len(names), LAYOUTS[layout].code
        tiles = -(-n // TILE) * step
        bytes_per_expert = tiles * _native.tile_bytes(code, k)
        packed = np.zeros(experts * bytes_per_expert, np.uint8)
        for position, name in enumerate(names):
            raw = self.binding[name].raw()
            rows = raw.data.reshape(experts * n, -1)
            for expert in range(experts):
                out = packed[expert * bytes_per_expert : (expert + 1) * bytes_per_expert]
                target = Target(self.pool, layout, k, out, position, step)
                pack_rows(target, raw.format, rows[expert * n : (expert + 1) * n])
        return packed, code, n * step, k, tiles


@dataclass(frozen=True, slots=True)
class Target:
    """Where the tiles of one matrix go: tile t to ``first`` + t * ``step``."""

    pool: _native.Pool
    layout: str
    k: int
    out: Bytes
    first: int
    step: int


def pack_rows(target: Target, format_name: str, rows: Bytes) -> None:
    """``rows`` [N, bytes of a row] in a file format."""
    if _native.packs(format_name, LAYOUTS[target.layout].code):
        _native_rows(target, format_name, rows, 0)
        return
    # A slice of rows at a time: what decoding needs beside the packed weight stays small.
    count = max(TILE, SLICE // target.k // TILE * TILE)
    for start in range(0, len(rows), count):
        part = rows[start : start + count]
        if LAYOUTS[target.layout].act == "q8":
            _widened_rows(target, format_name, part, start // TILE)
        else:
            values = FORMATS[format_name].decode(np.ascontiguousarray(part).reshape(-1))
            _native_rows(target, "F32", values.view(np.uint8).reshape(len(part), -1), start // TILE)


def _native_rows(target: Target, format_name: str, rows: Bytes, tile: int) -> None:
    _native.pack_rows(
        target.pool,
        LAYOUTS[target.layout].code,
        format_name,
        rows.reshape(-1),
        len(rows),
        target.k,
        target.out,
        target.first + tile * target.step,
        target.step,
    )


def _widened_rows(target: Target, format_name: str, rows: Bytes, tile: int) -> None:
    split = FORMATS[format_name].split
    if split is None:
        raise ValueError(f"{format_name} holds no integers, {target.layout} needs them")
    parts = split(np.ascontiguousarray(rows).reshape(-1))
    tiles = widened_tiles(parts, len(rows), target.k, LAYOUTS[target.layout].mins)
    first = target.first + tile * target.step
    all_tiles = target.out.reshape(-1, tiles.shape[1])
    all_tiles[first : first + len(tiles) * target.step : target.step] = tiles
