"""Where a text has had its newest tokens before, by hash chains.

Chains are those of LZ77's fast matchers (RFC 1951, section 4): a table from the hash of a few
tokens to the newest place behind them, and for each place the one before it of the same hash. 8 to
16 bytes a token, beside the tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

MAX_TRIED = 16
"""Places that are compared, newest first."""
FIRST_SIZE = 256
"""Of the table; it has at least as many entries as there are places."""
FACTORS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1)
"""Odd, of 32 bits: tokens differ in their low bits, hashes in their high ones."""


class Occurrence(NamedTuple):
    """``end``: behind the earlier place; ``length``: tokens that are equal before it."""

    end: int = 0
    length: int = 0


class TextIndex(Protocol):
    """Places of a text that its owner holds: whoever asks gives its tokens."""

    def read(self, tokens: Sequence[int], end: int, n_most: int, /) -> int:
        """Takes the tokens before ``end``, at most ``n_most``; how many these were. All of them are
        read when they are fewer. Where the table grows, it begins again with the first."""
        ...

    def has_read(self, end: int, /) -> bool:
        """All tokens before ``end``."""
        ...

    def match(self, tokens: Sequence[int], tail: Sequence[int], n_most: int, /) -> tuple[int, int]:
        """Fields of an ``Occurrence``: the longest place, of those that are tried, that ends as
        ``tail`` does, but for the very end of this text; the newest of equally long ones. Of at
        most ``n_most`` tokens."""
        ...


MakeIndex = Callable[[int], TextIndex]
"""By the tokens of the shortest match, 1 to 5."""


class PlainIndex(TextIndex):
    """The native one does the same (``native/lookup/text_index.h``)."""

    def __init__(self, n_key: int) -> None:
        self._n_key = n_key
        self._n_read = n_key - 1
        self._newest = array("i", [0]) * FIRST_SIZE
        self._before = array("i", [0]) * n_key

    def read(self, tokens: Sequence[int], end: int, n_most: int) -> int:
        if end > len(self._newest):
            self._grow(end)
        first, stop = self._n_read, min(end, self._n_read + n_most)
        n_key, newest, before = self._n_key, self._newest, self._before
        shift = 32 - (len(newest).bit_length() - 1)
        for place in range(self._n_read + 1, stop + 1):
            at = _hash(tokens, place - n_key, n_key) >> shift
            before.append(newest[at])
            newest[at] = place
        self._n_read = max(first, stop)
        return self._n_read - first

    def has_read(self, end: int) -> bool:
        return self._n_read >= end or end < self._n_key

    def match(self, tokens: Sequence[int], tail: Sequence[int], n_most: int) -> tuple[int, int]:
        n_key, found = self._n_key, Occurrence()
        if len(tail) < n_key:
            return found
        shift = 32 - (len(self._newest).bit_length() - 1)
        place = self._newest[_hash(tail, len(tail) - n_key, n_key) >> shift]
        for _ in range(MAX_TRIED):
            if not place:
                break
            if place < len(tokens):
                length = _n_equal(tokens, place, tail, n_most)
                if length > found.length:
                    found = Occurrence(place, length)
                    if length == n_most:
                        break
            place = self._before[place]
        return found if found.length >= n_key else Occurrence()

    def _grow(self, n_places: int) -> None:
        """A larger, empty table: to fill it at once would hold a step up."""
        size = 1 << (max(n_places, 2 * len(self._newest)) - 1).bit_length()
        self._newest = array("i", [0]) * size
        self._before = array("i", [0]) * self._n_key
        self._n_read = self._n_key - 1


class Text:
    """``tokens`` may grow at their end; ``read`` takes what is new into the index."""

    def __init__(self, tokens: Sequence[int], index: TextIndex) -> None:
        self.tokens = tokens
        self._index = index
        self.has_read = index.has_read

    def read(self, end: int, n_most: int) -> int:
        return self._index.read(self.tokens, end, n_most)

    def match(self, tail: Sequence[int], n_most: int) -> Occurrence:
        return Occurrence(*self._index.match(self.tokens, tail, n_most))

    def following(self, match: Occurrence, n_most: int) -> list[int]:
        """Tokens behind ``match``; where they reach the end of the text, what follows is what they
        began with, as of a text that goes on repeating itself."""
        known = self.tokens[match.end : match.end + n_most]
        period = len(self.tokens) - match.end
        return [known[i % period] for i in range(n_most)]


def _hash(tokens: Sequence[int], start: int, n: int) -> int:
    found = 0
    for i in range(n):
        found += (tokens[start + i] + 1) * FACTORS[i]
    return found & 0xFFFFFFFF


def _n_equal(tokens: Sequence[int], end: int, tail: Sequence[int], n_most: int) -> int:
    """Tokens before ``end`` that are those at the end of ``tail``."""
    last = len(tail)
    n_most = min(n_most, end, last)
    n = 0
    while n < n_most and tokens[end - 1 - n] == tail[last - 1 - n]:
        n += 1
    return n
