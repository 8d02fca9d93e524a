"""Regular expressions that stop a text, as an automaton that reads it once.

Glushkov's construction (1961): a state for each character of a pattern, and for each which may
follow it; nothing ever goes back in the text, so a character costs at most ``MAX_STATES``, whatever
pattern and text. Patterns are written and mean what they do in Python's ``re``; what an automaton
does not have is refused by name. No library that we know reads a text in pieces and says how much
of its end may belong to a match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from kvasir.core.errors import RequestError
from kvasir.validation.regex_syntax import CharSet, Node, Tree, parse, size_of

MAX_PATTERNS = 4
MAX_PATTERN_BYTES = 256
MAX_STATES = 128
"""Of all patterns of a request: an automaton has so many, with what is repeated written out."""
_KEPT = 256
"""Steps that an automaton remembers; a full memory begins anew."""
_KEPT_CHARS = 4096

Threads = tuple[int, ...]
"""States that a text may be in, as bits, by where in it a match began: the earliest first. None is
in two of them, as the earlier beginning is the longer match."""


class Transition(msgspec.Struct, frozen=True):
    """What one character does."""

    threads: Threads
    origins: tuple[int, ...]
    """Per thread which of the threads before it was; -1: it begins with this character."""
    ended: int
    """The first thread in which a match ends; -1: none."""
    pattern: int
    """Which ends there."""


@dataclass(slots=True)
class Automaton:
    """Of several patterns. Shared by all texts that they stop."""

    follow: list[int] = field(default_factory=list)
    """Per state the states that may come after it, as bits."""
    tests: list[CharSet] = field(default_factory=list)
    """Per state its character."""
    first: int = 0
    lasts: list[int] = field(default_factory=list)
    """Per pattern the states in which it may end."""
    _masks: dict[str, int] = field(default_factory=dict)
    _steps: dict[tuple[Threads, int], Transition] = field(default_factory=dict)

    def step(self, threads: Threads, char: str) -> Transition:
        key = threads, self._mask(char)
        step = self._steps.get(key)
        if step is None:
            if len(self._steps) >= _KEPT:
                self._steps.clear()
            step = self._steps[key] = self._step(*key)
        return step

    def _step(self, threads: Threads, mask: int) -> Transition:
        found, origins, seen = [], [], 0
        for i, states in enumerate((*threads, 0)):
            is_new = i == len(threads)
            reached = (self.first if is_new else self._after(states)) & mask & ~seen
            if reached:
                found.append(reached)
                origins.append(-1 if is_new else i)
                seen |= reached
        ends = (
            (i, p) for i, s in enumerate(found) for p, last in enumerate(self.lasts) if s & last
        )
        ended, pattern = next(ends, (-1, -1))
        return Transition(tuple(found), tuple(origins), ended, pattern)

    def _after(self, states: int) -> int:
        reached = 0
        while states:
            lowest = states & -states
            reached |= self.follow[lowest.bit_length() - 1]
            states ^= lowest
        return reached

    def _mask(self, char: str) -> int:
        """The states whose character it is."""
        mask = self._masks.get(char)
        if mask is None:
            if len(self._masks) >= _KEPT_CHARS:
                self._masks.clear()
            mask = sum(1 << i for i, test in enumerate(self.tests) if test.has(char))
            self._masks[char] = mask
        return mask

    def add(self, node: Node) -> None:
        """One more pattern. Raises RequestError where it matches the empty text."""
        if self.add_any(node):
            raise RequestError(
                "stop_regex matches the empty text: every answer would end at once",
                param="stop_regex",
            )

    def add_any(self, node: Node) -> bool:
        """One more pattern; whether it matches the empty text."""
        is_empty, first, last = self._build(node)
        self.first |= first
        self.lasts.append(last)
        return is_empty

    def _build(self, node: Node) -> tuple[bool, int, int]:
        """(whether it matches the empty text, states in which it begins, in which it ends)."""
        if isinstance(node, CharSet):
            self.tests.append(node)
            self.follow.append(0)
            own = 1 << (len(self.follow) - 1)
            return False, own, own
        if node.kind == "either":
            return self._either([self._build(part) for part in node.parts])
        if node.kind == "sequence":
            return self._sequence([self._build(part) for part in node.parts])
        return self._repeat(node)

    def _either(self, parts: Sequence[tuple[bool, int, int]]) -> tuple[bool, int, int]:
        first = last = 0
        for _, begins, ends in parts:
            first, last = first | begins, last | ends
        return any(is_empty for is_empty, _, _ in parts), first, last

    def _sequence(self, parts: Sequence[tuple[bool, int, int]]) -> tuple[bool, int, int]:
        is_empty, first, last = True, 0, 0
        for may_lack, begins, ends in parts:
            self._connect(last, begins)
            first |= begins if is_empty else 0
            last = ends | (last if may_lack else 0)
            is_empty = is_empty and may_lack
        return is_empty, first, last

    def _repeat(self, node: Tree) -> tuple[bool, int, int]:
        """Written out; without an upper bound the last goes on with itself."""
        most = max(node.least, 1) if node.most is None else node.most
        copies = [self._build(node.parts[0]) for _ in range(most)]
        if node.most is None:
            self._connect(copies[-1][2], copies[-1][1])
        needed = [
            (is_empty or i >= node.least, begins, ends)
            for i, (is_empty, begins, ends) in enumerate(copies)
        ]
        return self._sequence(needed)

    def _connect(self, states: int, after: int) -> None:
        while states:
            lowest = states & -states
            self.follow[lowest.bit_length() - 1] |= after
            states ^= lowest


@lru_cache(maxsize=16)
def automaton(patterns: tuple[str, ...]) -> Automaton:
    """Raises RequestError for a pattern that is no regular expression, or none that is taken."""
    trees = [parse(pattern) for pattern in patterns]
    n_states = sum(map(size_of, trees))
    if n_states > MAX_STATES:
        raise RequestError(
            f"stop_regex has {n_states} characters with what is repeated written out, at most "
            f"{MAX_STATES} are allowed: shorten it",
            param="stop_regex",
        )
    made = Automaton()
    for tree in trees:
        made.add(tree)
    return made


class PatternMatcher:
    """Reads a text character by character."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = patterns
        self._automaton = automaton(patterns)
        self._threads: Threads = ()
        self._begins: list[int] = []
        """Of the threads: characters before the match."""
        self._n = 0

    def advance(self, char: str) -> tuple[int, str] | None:
        """Take one character: the length of the longest match that ends with it, and its
        pattern."""
        step = self._automaton.step(self._threads, char)
        begins, n = self._begins, self._n
        self._threads, self._n = step.threads, n + 1
        self._begins = [begins[i] if i >= 0 else n for i in step.origins]
        if step.ended < 0:
            return None
        return self._n - self._begins[step.ended], self._patterns[step.pattern]

    @property
    def n_open(self) -> int:
        """Characters at the end of the text with which a match may have begun."""
        return self._n - self._begins[0] if self._begins else 0
