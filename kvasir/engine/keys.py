"""The key root: two engines with equal roots compute equal bits from equal tokens."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from kvasir.exec.base import ExecutorSpec

ARITHMETIC = 3
"""Version of what the executors compute, bit for bit; tests/golden/bits.json holds them to it."""
LAYOUT = "paged-2"
"""Version of what a KV block holds; changes with the order or rounding of its entries."""


class _KeyMaterial(msgspec.Struct, frozen=True):
    weights: str
    numerics_id: str
    kv_dtype: str
    kv_layout: str
    kv_groups: tuple[str, ...]
    block_size: int
    vocab_size: int
    rope: str


def key_root(weights_hash: str, spec: ExecutorSpec, kv_dtype: str, rope: str) -> str:
    """Hex BLAKE2b-256 over everything that what is kept beyond a request depends on.

    ``weights_hash`` names the content of the weights, ``rope`` the bits of its position
    encoding.
    """
    material = _KeyMaterial(
        weights=weights_hash,
        numerics_id=spec.numerics_id,
        kv_dtype=kv_dtype,
        kv_layout=LAYOUT,
        kv_groups=tuple(group.kind for group in spec.groups),
        block_size=spec.block_size,
        vocab_size=spec.vocab_size,
        rope=rope,
    )
    return blake2b(msgspec.json.encode(material), digest_size=32, person=b"kvasir-key").hexdigest()
