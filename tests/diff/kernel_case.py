"""What the kernel tests share: a case that runs in pieces, activations and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.exec.cpu import layouts
from kvasir.exec.cpu.codes import LAYOUT_CODES
from kvasir.exec.cpu.weights import PackTarget, pack_rows
from kvasir.formats import types
from kvasir.formats.decode import decode
from tests.format_blocks import packed_values, random_blocks
from tests.kv_codes import from_bf16, to_bf16

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
Ranges = Sequence[tuple[int, int]]
FORMAT_OF = {
    "f32": "F32", "bf16": "BF16", "f16": "F16", "q8": "Q8_0", "q4z": "Q4_0", "q4m": "Q4_1",
    "q4k": "Q4_K", "q5k": "Q5_K", "q6k": "Q6_K", "q5z": "Q5_0", "q5m": "Q5_1", "iq4": "IQ4_NL",
    "q8s": "IQ3_S", "q8m": "Q2_K", "q2k": "Q2_K", "q3k": "Q3_K", "iq4xs": "IQ4_XS",
    "mxfp4": "MXFP4",
    "iq2xxs": "IQ2_XXS", "iq2xs": "IQ2_XS", "iq2s": "IQ2_S", "iq3xxs": "IQ3_XXS", "iq3s": "IQ3_S",
    "iq1s": "IQ1_S", "iq1m": "IQ1_M", "tq1": "TQ1_0", "tq2": "TQ2_0", "nvfp4": "NVFP4M",
}  # fmt: skip
FORMAT_OF |= {x.lower(): x for x in types.MODULE_FORMATS if x.lower() in layouts.LAYOUTS}
"""A format of each layout."""
LAYOUTS = tuple(layouts.LAYOUTS)
FORMATS = tuple(FORMAT_OF[name] for name in LAYOUTS)


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
    sums: NDArray[np.int32]
    rows: _native.Rows


def empty_q8(n_rows: int, K: int, block: int) -> Quantized:
    data = np.zeros((n_rows, K), np.int8)
    scales = np.full((n_rows, K // block), np.nan, np.float32)
    sums = np.full((n_rows, K // 32, 2), -1, np.int32)
    return Quantized(data, scales, sums, _native.Rows(data, block, scales, sums))


def quantize(x: Floats, block: int) -> tuple[NDArray[np.int8], Floats, NDArray[np.int32]]:
    """int8, scale per block, sums per group of 32 and of its first 16; the kernel's operations."""
    blocks = x.reshape(len(x), -1, block)
    amax = np.abs(blocks).max(axis=2, keepdims=True)
    inverse = np.where(
        amax > 0, np.float32(127) / np.where(amax > 0, amax, 1), np.float32(0)
    ).astype(np.float32)
    q = np.rint(blocks * inverse).astype(np.int8).reshape(x.shape)
    runs = q.reshape(len(x), -1, 2, 16).sum(axis=3, dtype=np.int32)
    sums = np.stack([runs.sum(axis=2, dtype=np.int32), runs[..., 0]], axis=2)
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
    if format_ == "F16":
        half = normal(rng, n, K).astype(np.float16)
        return half.reshape(-1).view(np.uint8), half.astype(np.float64)
    form = types.FORMATS[format_]
    raw = random_blocks(format_, n * K // form.block, int(rng.integers(1 << 30)), top=0x0C)
    return raw, packed_values(format_, raw).reshape(n, K).astype(np.float64)


def with_codes(
    format_: str, raw: NDArray[np.uint8], n: int, at: slice, value: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """``n`` rows of a file, their blocks' bytes ``at`` set to ``value``; the values [n, K]."""
    form = types.FORMATS[format_]
    blocks = raw.reshape(-1, form.block_bytes).copy()
    blocks[:, at] = value
    return blocks.reshape(raw.shape), decode(format_, blocks).reshape(n, -1).astype(np.float64)


def fitting(layout: int, K: int) -> int:
    """``K`` or the next multiple of a format's block."""
    block = types.FORMATS[FORMATS[layout]].block
    return -(-K // block) * block


def pack(layout: int, parts: Sequence[NDArray[np.uint8]], n: int, K: int) -> NDArray[np.uint8]:
    """Column tiles of one weight, or of several with their tiles taking turns (gate, up)."""
    return pack_format(LAYOUTS[layout], FORMATS[layout], parts, n, K)


def pack_format(
    layout: str, format_: str, parts: Sequence[NDArray[np.uint8]], n: int, K: int
) -> NDArray[np.uint8]:
    """As ``pack``: rows of any format that the layout takes."""
    tiles = -(-n // 16) * len(parts)
    out = np.zeros(tiles * _native.tile_bytes(LAYOUT_CODES[layout], K), np.uint8)
    pool = _native.Pool(1)
    for i, rows in enumerate(parts):
        target = PackTarget(pool, layout, K, out, i, len(parts))
        pack_rows(target, format_, rows.reshape(n, -1))
    return out
