"""Who follows an answer that must keep to something: tokens of reasoning, and what is forced.

Tokens are counted here and not by the library, whose own limit disables its rollback. What is
forced is a function of the outputs alone, so a replay forces the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from kvasir.grammar.thinking import ThinkingLimit
from kvasir.sampling.masks import Bits, NativeFill

MAX_WAIT = 3
"""Tokens that a character may still need, each a byte: a marker cuts none."""
BLANKS = b" \n\r\t"


class _Standpoint(msgspec.Struct, frozen=True):
    """Where an answer stands."""

    phase: Literal["before", "inside", "after"]
    tail: bytes = b""
    """What may be part of a marker."""
    n_outputs: int = 0
    n_inside: int = 0
    n_forced: int = 0
    is_whole: bool = True
    """Whether the outputs end between two characters."""


class ThinkingClock:
    """Follows outputs and says which token is forced."""

    def __init__(self, limit: ThinkingLimit, bytes_of: Callable[[int], bytes]) -> None:
        """``bytes_of`` a token; of special ones, what ``special_bytes`` says."""
        self._limit = limit
        self._bytes_of = bytes_of
        self._begin, self._end = _written(limit.begin), _written(limit.end)

    def first(self) -> _Standpoint:
        return _Standpoint("inside" if self._limit.is_open else "before")

    def forced(self, place: _Standpoint) -> int | None:
        """The token that must follow."""
        if place.phase != "inside":
            return None
        limit, wait = self._limit, 0 if place.is_whole else MAX_WAIT
        is_over = limit.budget is not None and place.n_inside >= limit.budget + wait
        if limit.closes_at is not None:
            is_over = is_over or place.n_outputs >= limit.closes_at + wait
        return limit.close[place.n_forced] if is_over or place.n_forced else None

    def after(self, place: _Standpoint, token: int) -> _Standpoint:
        """Where the answer stands behind ``token``."""
        is_forced = self.forced(place) == token
        place = replace(place, n_outputs=place.n_outputs + 1)
        if place.phase == "after":
            return place
        if is_forced:
            n = place.n_forced + 1
            phase: Literal["inside", "after"] = "after" if n == len(self._limit.close) else "inside"
            return replace(place, phase=phase, n_forced=n)
        tail = place.tail + self._bytes_of(token)
        place = replace(place, is_whole=_is_whole(tail))
        return self._before(place, tail) if place.phase == "before" else self._inside(place, tail)

    def _before(self, place: _Standpoint, tail: bytes) -> _Standpoint:
        said = tail.lstrip(BLANKS)
        if not said.startswith(self._begin):
            is_begin = self._begin.startswith(said)
            return replace(place, tail=said) if is_begin else replace(place, phase="after")
        rest = said[len(self._begin) :]
        if self._end in rest:
            return replace(place, phase="after")
        return replace(place, phase="inside", tail=rest)

    def _inside(self, place: _Standpoint, tail: bytes) -> _Standpoint:
        if self._end in tail:
            return replace(place, phase="after", tail=b"")
        keep = max(len(self._end) - 1, MAX_WAIT)
        return replace(place, tail=tail[-keep:], n_inside=place.n_inside + 1)


def special_bytes(token: int) -> bytes:
    """Stands for a token that no text spells: no UTF-8 has its first byte."""
    return b"\xff%d;" % token


def _is_whole(tail: bytes) -> bool:
    """Whether UTF-8 may end here."""
    for n, byte in enumerate(reversed(tail[-MAX_WAIT:]), start=1):
        if byte < 0x80:
            return True
        if byte >= 0xC0:
            return n >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return True


def _written(parts: Sequence[int | str]) -> bytes:
    return b"".join(
        special_bytes(part) if isinstance(part, int) else part.encode() for part in parts
    )


class Follower(Protocol):
    """Where one answer stands in what it must keep to."""

    def copy(self) -> Follower: ...

    def consume(self, tokens: Sequence[int]) -> bool: ...

    def fill(self, path: Sequence[int], bits: Bits) -> None: ...

    def native(self, tokens: Sequence[int]) -> NativeFill | None: ...

    def filled(self, tokens: Sequence[int]) -> None: ...


class FreeFollower:
    """Anything may follow."""

    def copy(self) -> FreeFollower:
        return self

    def consume(self, tokens: Sequence[int]) -> bool:
        return True

    def fill(self, path: Sequence[int], bits: Bits) -> None:
        bits[:] = 0xFFFFFFFF

    def native(self, tokens: Sequence[int]) -> NativeFill | None:
        return None

    def filled(self, tokens: Sequence[int]) -> None:
        """It follows anything."""


class LimitedFollower:
    """As another, and where a token is forced that token alone."""

    def __init__(self, inner: Follower, clock: ThinkingClock) -> None:
        self._inner = inner
        self._clock = clock
        self._place = clock.first()

    def copy(self) -> LimitedFollower:
        found = LimitedFollower(self._inner.copy(), self._clock)
        found._place = self._place
        return found

    def consume(self, tokens: Sequence[int]) -> bool:
        self._place = self._after(tokens)
        return self._inner.consume(tokens)

    def native(self, tokens: Sequence[int]) -> NativeFill | None:
        is_forced = self._clock.forced(self._after(tokens)) is not None
        return None if is_forced else self._inner.native(tokens)

    def filled(self, tokens: Sequence[int]) -> None:
        self._place = self._after(tokens)
        self._inner.filled(tokens)

    def _after(self, tokens: Sequence[int]) -> _Standpoint:
        place = self._place
        for token in tokens:
            place = self._clock.after(place, token)
        return place

    def fill(self, path: Sequence[int], bits: Bits) -> None:
        forced = self._clock.forced(self._after(path))
        if forced is None:
            self._inner.fill(path, bits)
        else:
            bits[forced // 32] |= 1 << (forced % 32)
