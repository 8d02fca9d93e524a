"""The key root: two engines with equal roots compute equal bits from equal tokens."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from kvasir.core.sizes import EngineSizes

LAYOUT = "paged-2"
"""Version of what a KV block holds; changes with the order or rounding of its entries."""


def key_root(
    weights_hash: str, numerics_id: str, sizes: EngineSizes, kv_dtype: str, rope: str
) -> str:
    """Hex BLAKE2b-256 over everything that what is kept beyond a request depends on.

    ``weights_hash`` names the content of the weights, ``numerics_id`` the arithmetic, ``rope`` the
    bits of its position encoding.
    """
    material = {
        "weights": weights_hash,
        "numerics_id": numerics_id,
        "kv_dtype": kv_dtype,
        "kv_layout": LAYOUT,
        "kv_groups": [group.kind for group in sizes.groups],
        "block_size": sizes.block_size,
        "vocab_size": sizes.vocab_size,
        "rope": rope,
    }
    return blake2b(msgspec.json.encode(material), digest_size=32, person=b"kvasir-key").hexdigest()
