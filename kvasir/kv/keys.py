"""Names of cached blocks: a block's key stands for everything that its entries depend on."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from kvasir.core.request import Context

KEY_BYTES = 32
TOKEN_BYTES = 4
_EMPTY = blake2b(digest_size=KEY_BYTES)
"""Copied for every block: faster than reading the options again."""


@lru_cache(maxsize=256)
def chain_root(key_root: str, context: Context) -> bytes:
    """The key before the first block: of an engine, and of all else that changes the entries of
    equal tokens."""
    material = msgspec.msgpack.encode((key_root, context))
    return blake2b(material, digest_size=KEY_BYTES, person=b"kvasir-chain").digest()


class KeyChain:
    """Keys of the full blocks of one sequence: BLAKE2b-256 of the parent's key and the tokens.

    ``tokens`` is not copied and may grow. Keys are computed once, when asked for.
    """

    def __init__(self, root: bytes, tokens: Sequence[int], block_size: int) -> None:
        self.root = root
        self._tokens = tokens
        self._block_size = block_size
        self._keys: list[bytes] = []
        self._data = bytearray()
        """Of the tokens that were known when some of them were asked for."""

    @property
    def n_full(self) -> int:
        """Blocks that the tokens fill now."""
        return len(self._tokens) // self._block_size

    def keys(self, n: int) -> Sequence[bytes]:
        """Keys of the first ``n`` <= ``n_full`` blocks, or more."""
        if n > len(self._keys):
            self._hash(n)
        return self._keys

    def follow(self, tokens: Sequence[int]) -> None:
        """Go on with another list, which begins with the same tokens."""
        self._tokens = tokens

    def block(self, i: int) -> tuple[bytes, bytes]:
        """Key and packed tokens of full block ``i``."""
        size = self._block_size
        return self.keys(i + 1)[i], self.packed(i * size, (i + 1) * size)

    def packed(self, start: int, stop: int) -> bytes:
        """Tokens [start, stop), 4 bytes each in the machine's order."""
        data = self._data
        if stop * TOKEN_BYTES > len(data):
            data += array("I", self._tokens[len(data) // TOKEN_BYTES :]).tobytes()
        return bytes(data[start * TOKEN_BYTES : stop * TOKEN_BYTES])

    def _hash(self, n: int) -> None:
        """The keys that are missing of the first ``n`` blocks."""
        keys, size = self._keys, self._block_size
        key = keys[-1] if keys else self.root
        data, step = self.packed(len(keys) * size, n * size), size * TOKEN_BYTES
        for at in range(0, len(data), step):
            hashed = _EMPTY.copy()
            hashed.update(key + data[at : at + step])
            key = hashed.digest()
            keys.append(key)
