"""The codes of the KV cache's types, literally: tables and search instead of arithmetic on bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

ITEM: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(np.uint16),
    "int8": np.dtype(np.int8),
    "fp8_e4m3": np.dtype(np.uint8),
    "fp8_e5m2": np.dtype(np.uint8),
}
LARGEST = {"int8": 127.0, "fp8_e4m3": 448.0}
SCALED = frozenset(LARGEST)


def to_bf16(x: Floats) -> NDArray[np.uint16]:
    """Nearest even; finite values only."""
    u = x.view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(h: NDArray[np.uint16]) -> Floats:
    return (h.astype(np.uint32) << 16).view(np.float32)


def fp8_table(mantissa: int, bias: int, n_special: int) -> Floats:
    """Values of the 256 codes; the last ``n_special`` of each sign are not finite."""
    half = np.empty(128, np.float32)
    for code in range(128):
        exponent, fraction = divmod(code, 1 << mantissa)
        one = 1 if exponent else 0
        half[code] = (one + fraction / (1 << mantissa)) * 2.0 ** (max(exponent, 1) - bias)
    half[128 - n_special :] = np.nan
    return np.concatenate([half, -half])


FP8 = {"fp8_e4m3": fp8_table(3, 7, 1), "fp8_e5m2": fp8_table(2, 15, 4)}


def encode(x: Floats, dtype: str) -> tuple[NDArray[Any], NDArray[np.uint16] | None]:
    """Codes of heads [..., head_dim] and, where the type has them, the bits of their scales."""
    x = np.ascontiguousarray(x)
    if dtype == "f32":
        return x, None
    if dtype == "bf16":
        return np.where(np.isnan(x), np.uint16(0x7FC0), to_bf16(x)), None
    if dtype not in SCALED:
        return nearest(x, FP8[dtype]), None
    finite = np.isfinite(x).all(axis=-1)
    amax = np.abs(np.where(finite[..., None], x, 0)).max(axis=-1)
    amax = np.asarray(amax / np.float32(LARGEST[dtype]), np.float32)
    bits = to_bf16(np.where(amax < 2.0**-100, np.float32(0), amax))
    scale = from_bf16(bits)[..., None]
    scaled = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = np.where(finite[..., None], x, 0) * scaled
    codes = np.rint(scaled).astype(np.int8) if dtype == "int8" else nearest(scaled, FP8[dtype])
    return codes, np.where(finite, bits, np.uint16(0x7FC0))


def decode(codes: NDArray[Any], scales: NDArray[np.uint16] | None, dtype: str) -> Floats:
    """Values of codes [..., head_dim]."""
    if dtype == "f32":
        return np.asarray(codes, np.float32)
    if dtype == "bf16":
        return from_bf16(codes)
    values = FP8[dtype][codes] if dtype in FP8 else codes.astype(np.float32)
    return values if scales is None else values * from_bf16(scales)[..., None]


def nearest(x: Floats, table: Floats) -> NDArray[np.uint8]:
    """The code of the nearest finite value, of two equally near the even code; NaN: 127."""
    finite = table[:128][np.isfinite(table[:128])].astype(np.float64)
    magnitude = np.minimum(np.abs(x.astype(np.float64)), finite[-1])
    above = np.searchsorted(finite, magnitude).clip(1, len(finite) - 1)
    below = above - 1
    far, near = finite[above] - magnitude, magnitude - finite[below]
    code = np.where((far < near) | ((far == near) & (above % 2 == 0)), above, below)
    code = np.where(np.isfinite(x), code, 127)
    return (code | np.where(np.signbit(x), 128, 0)).astype(np.uint8)
