"""Names of cached blocks: a block's key stands for everything that its entries depend on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct

import msgspec

KEY_BYTES = 32
TOKEN_BYTES = 4
_EMPTY = blake2b(digest_size=KEY_BYTES)
"""Copied for every block: faster than reading the options again."""


def chain_root(key_root: str, salt: str, *contents: bytes) -> bytes:
    """The key before the first block: of an engine, a tenant's salt, and what else (an adapter, the
    images of a prompt) changes the entries of equal tokens."""
    material = msgspec.msgpack.encode((key_root, salt, contents))
    return blake2b(material, digest_size=KEY_BYTES, person=b"kvasir-chain").digest()


class Chain:
    """Keys of the full blocks of one sequence: BLAKE2b-256 of the parent's key and the tokens.

    ``tokens`` is not copied and may grow. Keys are computed once, when asked for.
    """

    def __init__(self, root: bytes, tokens: Sequence[int], block_size: int) -> None:
        self.root = root
        self._tokens = tokens
        self._block_size = block_size
        self._keys: list[bytes] = []

    @property
    def n_full(self) -> int:
        """Blocks that the tokens fill now."""
        return len(self._tokens) // self._block_size

    def keys(self, n: int) -> Sequence[bytes]:
        """Keys of the first ``n`` <= ``n_full`` blocks, or more."""
        if n > len(self._keys):
            self._extend(n)
        return self._keys

    def follow(self, tokens: Sequence[int]) -> None:
        """Go on with another list, which begins with the same tokens."""
        self._tokens = tokens

    def block(self, i: int) -> tuple[bytes, bytes]:
        """Key and packed tokens of full block ``i``."""
        tokens = self.packed(i * self._block_size, (i + 1) * self._block_size)
        if i == len(self._keys):
            self._hash(tokens, len(tokens))
        return self.keys(i + 1)[i], tokens

    def packed(self, start: int, stop: int) -> bytes:
        """Tokens [start, stop), little endian, 4 bytes each."""
        return _words(stop - start).pack(*self._tokens[start:stop])

    def _extend(self, n: int) -> None:
        size, first = self._block_size, len(self._keys)
        data = self.packed(first * size, n * size)
        self._hash(data, size * TOKEN_BYTES)

    def _hash(self, data: bytes, step: int) -> None:
        """Keys of the next blocks, of which ``data`` has ``step`` bytes each."""
        key = self._keys[-1] if self._keys else self.root
        append, fresh = self._keys.append, _EMPTY.copy
        for at in range(0, len(data), step):
            hashed = fresh()
            hashed.update(key + data[at : at + step])
            key = hashed.digest()
            append(key)


@lru_cache(maxsize=64)
def _words(n: int) -> Struct:
    return Struct(f"<{n}I")
