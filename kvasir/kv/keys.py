"""Names of cached blocks: a block's key stands for everything that its entries depend on."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from kvasir.core.request import Context
from kvasir.core.tiles import Media

KEY_BYTES = 32
TOKEN_BYTES = 4
NO_TOKEN = 2**32 - 1
"""In place of a token that stands for something else; no vocabulary has it."""
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

    ``tokens`` is not copied and may grow. Keys are computed once, when asked for. A token that
    stands for a part of an image is packed as ``NO_TOKEN``, and behind the tokens of such a block
    stands what it is of: blocks before an image have the keys that they have without it.
    """

    def __init__(
        self, root: bytes, tokens: Sequence[int], block_size: int, media: Sequence[Media] = ()
    ) -> None:
        self.root = root
        self._media = media
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
        """Key of full block ``i``, its tokens, packed, and what some of them stand for."""
        size = self._block_size
        start, stop = i * size, (i + 1) * size
        return self.keys(i + 1)[i], self._packed(start, stop) + self._named(start, stop)

    def words(self, start: int, stop: int) -> bytes:
        """Of the tokens [start, stop), packed, those before the first that stands for something
        else: the longest part that its tokens alone tell from others."""
        first = min((x.start for x in self._media if x.end > start), default=stop)
        return self._packed(start, max(start, min(first, stop)))

    def _named(self, start: int, stop: int) -> bytes:
        """Of each tile with tokens in [start, stop): where they are, and which of its own."""
        named = b""
        for media in self._media:
            begin, end = max(start, media.start), min(stop, media.end)
            if begin < end:
                places = array("I", (begin - start, end - start, begin - media.start))
                named += places.tobytes() + media.digest
        return named

    def _packed(self, start: int, stop: int) -> bytes:
        """4 bytes for each of the tokens [start, stop), in the machine's order."""
        data = self._data
        n_packed = len(data) // TOKEN_BYTES
        if stop > n_packed:
            words = array("I", self._tokens[n_packed:])
            for media in self._media:
                for at in range(max(media.start, n_packed), min(media.end, n_packed + len(words))):
                    words[at - n_packed] = NO_TOKEN
            data += words.tobytes()
        return bytes(data[start * TOKEN_BYTES : stop * TOKEN_BYTES])

    def _hash(self, n: int) -> None:
        """The keys that are missing of the first ``n`` blocks."""
        keys, size = self._keys, self._block_size
        key = keys[-1] if keys else self.root
        first, step = len(keys) * size, size * TOKEN_BYTES
        data = self._packed(first, n * size)
        for at in range(0, len(data), step):
            hashed = _EMPTY.copy()
            hashed.update(key + data[at : at + step])
            if self._media:
                start = first + at // TOKEN_BYTES
                hashed.update(self._named(start, start + size))
            key = hashed.digest()
            keys.append(key)
