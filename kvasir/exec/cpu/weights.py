"""Packs a model's weights for the native kernels: from file rows to column tiles, without changing
a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.exec.cpu.lower import WeightUse
from kvasir.exec.cpu.records import LAYOUTS
from kvasir.ir.program import Weight
from kvasir.weights.bind import Binding

TILE = 16

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
        return self._matrix(use.names, LAYOUTS[layouts.pop()])

    def _vector(self, names: tuple[str, ...]) -> NativeWeight:
        values = np.concatenate([self.binding[name].dequantize().reshape(-1) for name in names])
        return (
            np.ascontiguousarray(values, np.float32).view(np.uint8),
            LAYOUTS["f32"],
            values.size,
            1,
            1,
        )

    def _matrix(self, names: tuple[str, ...], layout: int) -> NativeWeight:
        shape = self.weights[names[0]].shape
        experts, (n, k) = (1 if len(shape) == 2 else shape[0]), shape[-2:]
        step = len(names)
        tiles = -(-n // TILE) * step
        bytes_per_expert = tiles * _native.tile_bytes(layout, k)
        packed = np.zeros(experts * bytes_per_expert, np.uint8)
        for position, name in enumerate(names):
            raw = self.binding[name].raw()
            rows = raw.data.reshape(experts, -1)
            for expert in range(experts):
                out = packed[expert * bytes_per_expert : (expert + 1) * bytes_per_expert]
                _native.pack_rows(
                    self.pool,
                    layout,
                    raw.format,
                    rows[expert],
                    n,
                    k,
                    out,
                    position,
                    step,
                )
        return packed, layout, n * step, k, tiles
