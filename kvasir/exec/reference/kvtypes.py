"""How keys and values are rounded to the types of the KV cache: the specification, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir.core.kvtypes import KV_TYPES, KVType
from kvasir.ir.numerics import round_bf16

Floats = NDArray[np.float32]


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
