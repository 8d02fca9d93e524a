"""Stop strings over streamed text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvasir.core.errors import RequestError


class TextStop(Protocol):
    """Reads the same text, character by character, for stops of another kind."""

    def advance(self, char: str) -> tuple[int, str] | None:
        """Length and name of the longest stop that ``char`` completes."""
        ...

    @property
    def n_open(self) -> int:
        """Characters at the end of the text that may yet be the beginning of a stop."""
        ...


class StopStrings:
    """Finds the first stop string in a text that arrives in pieces, and holds back what may become
    one.

    The result does not depend on how the text is cut: the stop that is complete first wins, of
    several complete at the same character the longest. Knuth, Morris and Pratt 1977: O(1) amortised
    per character and stop. What they prepare is made as far as the text has come to match: a stop
    costs nothing for its length.
    """

    def __init__(
        self, stops: Sequence[str], include: bool = False, matcher: TextStop | None = None
    ) -> None:
        """``include``: the stop is part of the text. ``matcher``: of what else stops it. Raises
        RequestError for an empty stop."""
        if "" in stops:
            raise RequestError("stop strings must not be empty", param="stop")
        self._stops = tuple(stops)
        self._include = include
        self._matcher = matcher
        self._fallbacks = [[0] for _ in self._stops]
        """Per stop and prefix of it, the length of its longest proper prefix that is also its
        suffix; up to the longest prefix that the text has had."""
        self._states = [0] * len(self._stops)
        self._held = ""
        self._matched: str | None = None

    def push(self, delta: str, may_end: bool = True) -> tuple[str, str | None]:
        """(text that is safe to send, the stop that ended it or None); no text after a match.

        Without ``may_end`` a stop that is complete in ``delta`` ends nothing; one that begins there
        may end the text later.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._stops and self._matcher is None:
            return delta, None
        text = self._held + delta
        for end in range(len(self._held) + 1, len(text) + 1):
            n, matched = self._advance(text[end - 1])
            if matched is not None and may_end:
                self._held, self._matched = "", matched
                return text[: end if self._include else end - n], matched
        n_open = 0 if self._matcher is None else self._matcher.n_open
        n_safe = len(text) - max(n_open, *map(self._open, range(len(self._stops))), 0)
        self._held = text[n_safe:]
        return text[:n_safe], None

    def flush(self) -> str:
        """The text held back, at the end of a stream that met no stop."""
        held, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return held

    def _open(self, i: int) -> int:
        """Characters at the end of the text that may yet be the beginning of stop ``i``."""
        state = self._states[i]
        return state if state < len(self._stops[i]) else self._fallbacks[i][state - 1]

    def _advance(self, char: str) -> tuple[int, str | None]:
        """Take one character; length and name of the longest stop that it completes."""
        matched: str | None = None
        for i, (stop, fallbacks) in enumerate(zip(self._stops, self._fallbacks, strict=True)):
            state = self._states[i]
            while state and (state == len(stop) or stop[state] != char):
                state = fallbacks[state - 1]
            state += stop[state] == char
            self._states[i] = state
            if state > len(fallbacks):
                fallbacks.append(_next_fallback(stop, fallbacks))
            if state == len(stop) and len(stop) > len(matched or ""):
                matched = stop
        found = len(matched or ""), matched
        other = None if self._matcher is None else self._matcher.advance(char)
        return other if other is not None and other[0] > found[0] else found


def _next_fallback(stop: str, known: list[int]) -> int:
    """Of the prefix that is one longer than those whose fallbacks are ``known``."""
    char, state = stop[len(known)], known[-1]
    while state and stop[state] != char:
        state = known[state - 1]
    return state + (stop[state] == char)
