"""Patterns of module names that a checkpoint brings: matched in linear time, or refused."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import ModelError, RequestError
from kvasir.validation.regex import MAX_PATTERN_BYTES, MAX_STATES, Automaton
from kvasir.validation.regex_syntax import Tree, parse, size_of

MAX_PATTERNS = 64
_KEPT = 4096
"""Steps that a pattern remembers."""


class Pattern(msgspec.Struct, frozen=True):
    """Matches from the beginning of a name, as ``re.match``; to its end where it ends with $."""

    automaton: Automaton
    takes_nothing: bool
    """Matches the empty text, so every name where it need not reach the end."""
    is_whole: bool
    _known: dict[tuple[int, str], int]
    """States that a character leads to, by those that may come and the character; bounded."""

    def matches(self, name: str) -> bool:
        if self.takes_nothing and (not self.is_whole or not name):
            return True
        made, last = self.automaton, self.automaton.lasts[0]
        reached = made.first
        for i, char in enumerate(name):
            states = self._having(reached, char)
            if states & last and (not self.is_whole or i == len(name) - 1):
                return True
            if not states:
                return False
            reached = self._after(states)
        return False

    def _having(self, states: int, char: str) -> int:
        """Those of ``states`` whose character it is."""
        key = states, char
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            tests = self.automaton.tests
            self._known[key] = sum(1 << i for i in _bits(states) if tests[i].has(char))
        return self._known[key]

    def _after(self, states: int) -> int:
        key = states, ""
        if key not in self._known:
            reached = 0
            for state in _bits(states):
                reached |= self.automaton.follow[state]
            self._known[key] = reached
        return self._known[key]


def pattern_of(text: str, where: str) -> Pattern:
    """Raises ModelError, which names ``where``, for one that is no pattern or that no automaton
    follows."""
    if len(text.encode()) > MAX_PATTERN_BYTES:
        raise _refused(text, where, f"it is longer than {MAX_PATTERN_BYTES} bytes")
    body = text.removeprefix("^")
    is_whole = body.endswith("$") and not body.endswith("\\$")
    body = body.removesuffix("$") if is_whole else body
    try:
        node = parse(body, "the pattern")
    except RequestError as error:
        raise _refused(text, where, error.message) from None
    if is_whole and isinstance(node, Tree) and node.kind == "either":
        raise _refused(text, where, "its $ is of the last alternative alone")
    if size_of(node) > MAX_STATES:
        raise _refused(
            text, where, f"it has more than {MAX_STATES} characters with repeats written out"
        )
    made = Automaton()
    takes_nothing = made.add_any(node)
    return Pattern(made, takes_nothing, is_whole, {})


def _refused(text: str, where: str, why: str) -> ModelError:
    return ModelError(
        f"{where}: {text[:80]!r} is not matched, as {why}: name the modules one by one",
        code="unsupported_format",
    )


def _bits(states: int) -> list[int]:
    return [i for i in range(states.bit_length()) if states >> i & 1]
