"""Who may find what a request leaves in the prefix cache."""

from __future__ import annotations

from hashlib import blake2b

import msgspec


def block_salt(key_id: str, cache_salt: str) -> str:
    """What stands for both in the keys of blocks: BLAKE2b-256, so that no text that a client sends
    makes the salt of another key. Without either there is none."""
    if not key_id and not cache_salt:
        return ""
    material = msgspec.msgpack.encode((key_id, cache_salt))
    return blake2b(material, digest_size=32, person=b"kvasir-salt").hexdigest()
