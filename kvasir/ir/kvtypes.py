"""How keys and values are kept: the types of the KV cache, their bytes, and their rounding as a
NumPy specification."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.ir.numerics import round_bf16

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class KVType:
    """One type of cache entries. K and V of a (token, KV head) are rounded once, when written."""

    item_bytes: int
    scale_bytes: int = 0
    """Of the bf16 scale of a (token, KV head), one for K and one for V; 0 without."""
    largest: float = 0.0
    """What the largest magnitude of a scaled head becomes."""
    mantissa: int = 0
    """Explicit bits of the mantissa, fp8 only."""
    min_exponent: int = 0
    """Of the smallest normal number, fp8 only."""

    def head_bytes(self, head_dim: int) -> int:
        """Bytes of one head's K (or V) of one token."""
        return head_dim * self.item_bytes + self.scale_bytes


KV_TYPES = {
    "f32": KVType(4),
    "bf16": KVType(2),
    "int8": KVType(1, 2, 127.0),
    "fp8_e4m3": KVType(1, 2, 448.0, 3, -6),
    "fp8_e5m2": KVType(1, 0, 57344.0, 2, -14),
}
"""By the ``dtype`` of a ``KVSpec``. fp8 as in Micikevicius et al. 2022 (OCP 8-bit floating point).
E4M3 ends at 448 and 2^-9, which keys of real models pass on both sides, so it has a scale as int8
has; E5M2 has the range of half precision and needs none."""
SMALLEST = np.float32(2.0**-100)
"""Scales below are zero, so that their inverses are finite."""


def round_kv(x: Floats, dtype: str) -> Floats:
    """What the cache gives back for heads [..., head_dim]; a scaled head that is not finite comes
    back as NaN."""
    if dtype == "f32":
        return x
    if dtype == "bf16":
        return round_bf16(x)
    kind = KV_TYPES[dtype]
    if not kind.scale_bytes:
        return round_fp8(x, kind)
    scale = kv_scale(x, kind)
    with np.errstate(invalid="ignore"):
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
        scaled = x * inverse[..., None]
        rounded = round_fp8(scaled, kind) if kind.mantissa else np.rint(scaled)
        return np.asarray(rounded * scale[..., None], np.float32)


def kv_scale(x: Floats, kind: KVType) -> Floats:
    """max|x| / largest of each head, rounded to bf16; NaN where the head is not finite."""
    scale = np.asarray(np.abs(x).max(axis=-1) / np.float32(kind.largest), np.float32)
    scale = np.where(np.isfinite(x).all(axis=-1), scale, np.float32(np.nan))
    return round_bf16(np.where(scale < SMALLEST, np.float32(0), scale))


def round_fp8(x: Floats, kind: KVType) -> Floats:
    """Nearest number of an fp8 type, ties to even; finite numbers saturate, others become NaN."""
    _, exponent = np.frexp(x)
    step = np.ldexp(np.float32(1), np.maximum(exponent - 1, kind.min_exponent) - kind.mantissa)
    with np.errstate(invalid="ignore"):
        rounded = np.rint(x / step) * step
    limit = np.float32(kind.largest)
    finite = np.clip(rounded, -limit, limit)
    return np.where(np.isfinite(x), finite, np.float32(np.nan)).astype(np.float32)
