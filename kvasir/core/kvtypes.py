"""The types of the KV cache: here alone stand their names, bytes and limits."""

from __future__ import annotations

import msgspec


class KVType(msgspec.Struct, frozen=True):
    """One type of cache entries. K and V of a (token, KV head) are rounded once, when written
    (``exec.reference.kvtypes``)."""

    name: str
    """As an option."""
    short: str
    """In programs: the ``dtype`` of a ``KVSpec``; ``KvType`` of native/kernels.h."""
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


_ALL = (
    KVType("float32", "f32", 4),
    KVType("bfloat16", "bf16", 2),
    KVType("int8", "int8", 1, 2, 127.0),
    KVType("fp8_e4m3", "fp8_e4m3", 1, 2, 448.0, 3, -6),
    KVType("fp8_e5m2", "fp8_e5m2", 1, 0, 57344.0, 2, -14),
)
KV_TYPES = {kind.short: kind for kind in _ALL}
"""By the short name. fp8 as in Micikevicius et al. 2022 (OCP 8-bit floating point). E4M3 ends at
448 and 2^-9, which keys of real models pass on both sides, so it has a scale as int8 has; E5M2 has
the range of half precision and needs none."""
KV_OPTIONS = {kind.name: kind for kind in _ALL} | {"fp8": KV_TYPES["fp8_e4m3"]}
"""By what a user may write."""
