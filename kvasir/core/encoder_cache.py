"""Which tiles' rows are kept: an executor keeps them, and a scheduler knows without asking."""

from __future__ import annotations

from collections import OrderedDict

CACHE_BYTES = 64 * 2**20
"""Of the newest tiles' rows: 17 of 64 rows of 2048 numbers, as one image has, are 9 MB."""
LEAST_KEPT = 2
"""Tiles: of one that is computed in several chunks all rows are made with the first."""


class EncoderCache:
    """Names of tiles, those used last behind the others. Who adds and uses in the same order, and
    ends the same steps, has the same."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.limit = limit
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._n_bytes = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._sizes

    def add(self, digest: bytes, n_bytes: int) -> None:
        self._n_bytes += n_bytes - self._sizes.pop(digest, 0)
        self._sizes[digest] = n_bytes

    def use(self, digest: bytes) -> None:
        if digest in self._sizes:
            self._sizes.move_to_end(digest)

    def end_step(self) -> list[bytes]:
        """Those that there is no room for any more; within a step all stay."""
        gone = []
        while self._n_bytes > self.limit and len(self._sizes) > LEAST_KEPT:
            digest, n_bytes = self._sizes.popitem(last=False)
            self._n_bytes -= n_bytes
            gone.append(digest)
        return gone

    def clear(self) -> None:
        self._sizes.clear()
        self._n_bytes = 0
