"""What the kernel tests share: a case that runs in pieces, activations and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from tests.diff.attention_case import from_bf16, to_bf16

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
Ranges = Sequence[tuple[int, int]]
LAYOUTS = ("f32", "bf16", "q8", "q4z", "q4m")
FORMATS = ("F32", "BF16", "Q8_0", "Q4_0", "Q4_1")


@dataclass(frozen=True)
class Case:
    """``run`` computes ranges of items into fresh outputs; ``expected``: each and its bound."""

    n_items: int
    run: Callable[[_native.Kernels, Ranges], tuple[Array, ...]]
    expected: Callable[[], tuple[tuple[Array, Array | float], ...]]
    step: int = 1
    """Ranges start and end at multiples of it."""


def rng_of(*words: int) -> np.random.Generator:
    return np.random.default_rng(words)


def normal(rng: np.random.Generator, *dims: int) -> Floats:
    return rng.standard_normal(dims, dtype=np.float32)


@dataclass(frozen=True)
class Quantized:
    """Empty q8 rows and their native view."""

    data: NDArray[np.int8]
    scales: Floats
    sums: Floats
    rows: _native.Rows


def empty_q8(n_rows: int, K: int, block: int) -> Quantized:
    data = np.zeros((n_rows, K), np.int8)
    scales = np.full((n_rows, K // block), np.nan, np.float32)
    sums = np.full((n_rows, K // 32), np.nan, np.float32)
    return Quantized(data, scales, sums, _native.Rows(data, block, scales, sums))


def quantize(x: Floats, block: int) -> tuple[NDArray[np.int8], Floats, Floats]:
    """int8, scale per block, sum of int8 per group of 32; the kernel's float32 operations."""
    blocks = x.reshape(len(x), -1, block)
    amax = np.abs(blocks).max(axis=2, keepdims=True)
    inverse = np.where(
        amax > 0, np.float32(127) / np.where(amax > 0, amax, 1), np.float32(0)
    ).astype(np.float32)
    q = np.rint(blocks * inverse).astype(np.int8).reshape(x.shape)
    sums = q.reshape(len(x), -1, 32).sum(axis=2, dtype=np.int64).astype(np.float32)
    return q, (amax / np.float32(127))[..., 0], sums


def file_rows(
    rng: np.random.Generator, format_: str, n: int, K: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Random weight rows as bytes of a file format, and their values [n, K]."""
    if format_ == "F32":
        w = normal(rng, n, K)
        return w.reshape(-1).view(np.uint8), w.astype(np.float64)
    if format_ == "BF16":
        h = to_bf16(normal(rng, n, K))
        return h.reshape(-1).view(np.uint8), from_bf16(h).astype(np.float64)
    groups = n * K // 32
    scale = rng.uniform(0.01, 0.1, (groups, 1)).astype(np.float16)
    low = rng.uniform(-1, 0, (groups, 1)).astype(np.float16)
    if format_ == "Q8_0":
        q = rng.integers(-128, 128, (groups, 32), dtype=np.int8)
        parts, values = [scale, q], scale * q.astype(np.float64)
    else:
        q = rng.integers(0, 16, (groups, 32), dtype=np.uint8)
        packed = q[:, :16] | q[:, 16:] << 4
        parts = [scale, packed] if format_ == "Q4_0" else [scale, low, packed]
        values = scale * (q - 8.0) if format_ == "Q4_0" else scale * q.astype(np.float64) + low
    raw = np.concatenate(
        [np.ascontiguousarray(p).view(np.uint8).reshape(groups, -1) for p in parts], axis=1
    )
    return raw.reshape(-1), values.reshape(n, K)


def pack(layout: int, parts: Sequence[NDArray[np.uint8]], n: int, K: int) -> NDArray[np.uint8]:
    """Column tiles of one weight, or of several with their tiles taking turns (gate, up)."""
    tiles = -(-n // 16) * len(parts)
    out = np.zeros(tiles * _native.tile_bytes(layout, K), np.uint8)
    pool = _native.Pool(1)
    for i, rows in enumerate(parts):
        _native.pack_rows(
            pool, layout, FORMATS[layout], rows, n, K, out=out, tile_first=i, tile_step=len(parts)
        )
    return out
