"""Regular expressions as trees: the part of Python's syntax that an automaton can follow.

Python's own ``re`` is not asked: a class of characters alone may take it milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, NoReturn

import msgspec

from kvasir.core.errors import RequestError

MAX_DEPTH = 32
"""Of groups in each other."""
_ENORMOUS = 1 << 20
"""Larger numbers of repeats are all too large."""
_FLAGS = re.compile(r"\(\?([is]+)\)")
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})")
_REPEAT = re.compile(r"[*+?]|\{(?=[0-9,]*[0-9])(\d*)(?:(,)(\d*))?\}", re.ASCII)
_KINDS: Mapping[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "s": str.isspace,
    "w": lambda char: char.isalnum() or char == "_",
}
_SIGNS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class CharSet(msgspec.Struct, frozen=True):
    """One character of a pattern. ``kinds``: letters of escapes, a capital for all others."""

    ranges: tuple[tuple[str, str], ...] = ()
    kinds: str = ""
    is_negated: bool = False
    ignores_case: bool = False

    def has(self, char: str) -> bool:
        forms = {char, char.lower(), char.upper()} if self.ignores_case else {char}
        return any(map(self._lists, forms)) != self.is_negated

    def _lists(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) or any(
            _KINDS[kind.lower()](char) != kind.isupper() for kind in self.kinds
        )


class Tree(msgspec.Struct, frozen=True):
    kind: Literal["either", "sequence", "repeat"]
    parts: tuple[Node, ...]
    least: int = 1
    most: int | None = 1
    """Of a repeat; None: without end."""


Node = CharSet | Tree


def parse(pattern: str, name: str = "stop_regex") -> Node:
    """Raises RequestError, in which the pattern is called ``name``."""
    found = _FLAGS.match(pattern)
    return _Parser(pattern, found.end() if found else 0, found[1] if found else "", name).whole()


def size_of(node: Node) -> int:
    """Characters, with what is repeated written out, nothing as one; ``_ENORMOUS`` and more are all
    alike."""
    if isinstance(node, CharSet):
        return 1
    size = sum(map(size_of, node.parts))
    if node.kind == "repeat":
        size *= max(node.least, 1) if node.most is None else node.most
    return min(max(size, 1), _ENORMOUS)


class _Parser:
    def __init__(self, pattern: str, at: int, flags: str, name: str) -> None:
        self._pattern, self._name = pattern, name
        self._at = at
        self._ignores_case, self._has_lines = "i" in flags, "s" not in flags
        self._depth = 0

    def whole(self) -> Node:
        node = self._either()
        if self._at < len(self._pattern):
            self._refuse("a ) without its (")
        return node

    def _either(self) -> Node:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Tree("either", tuple(branches))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            parts.append(self._repeated(self._one()))
        return parts[0] if len(parts) == 1 else Tree("sequence", tuple(parts))

    def _one(self) -> Node:
        if self._pattern[self._at] == "(":
            return self._group()
        if self._pattern[self._at] in "^$":
            self._refuse("anchors")
        if _REPEAT.match(self._pattern, self._at):
            self._refuse("nothing to repeat")
        if self._take("["):
            return self._char_class()
        if self._take("."):
            return CharSet((("\n", "\n"),) if self._has_lines else (), is_negated=True)
        return self._set([self._next()])

    def _group(self) -> Node:
        opening = _GROUP.match(self._pattern, self._at)
        if opening is None:
            self._refuse("a group that looks around, refers, comments or sets flags")
        if self._depth == MAX_DEPTH:
            self._refuse(f"more than {MAX_DEPTH} groups in each other")
        self._depth += 1
        self._at = opening.end()
        inside = self._either()
        if not self._take(")"):
            self._refuse("a ( without its )")
        self._depth -= 1
        return inside

    def _repeated(self, node: Node) -> Node:
        found = _REPEAT.match(self._pattern, self._at)
        if found is None:
            return node
        least, most = _bounds(found)
        if most is not None and most < least:
            self._refuse("a repeat of more than its most")
        self._at = found.end()
        self._take("?")  # where it would end sooner it ends anyway
        if _REPEAT.match(self._pattern, self._at):
            self._refuse("a repeat of a repeat")
        return Tree("repeat", (node,), least, most)

    def _char_class(self) -> CharSet:
        """What follows a [."""
        is_negated = self._take("^")
        items: list[str] = []
        while not items or not self._take("]"):
            item = self._next(in_class=True)
            is_range = self._pattern.startswith("-", self._at)
            if is_range and not self._pattern.startswith("]", self._at + 1):
                self._at += 1
                last = self._next(in_class=True)
                if len(item) > 1 or len(last) > 1 or last < item:
                    self._refuse("a range without beginning or end")
                item = f"{item}-{last}"
            items.append(item)
        return self._set(items, is_negated)

    def _set(self, items: list[str], is_negated: bool = False) -> CharSet:
        r"""``items``: "a", "a-z" or "\w"."""
        kinds = "".join(item[1] for item in items if len(item) == 2)
        ranges = tuple((item[0], item[-1]) for item in items if len(item) != 2)
        return CharSet(ranges, kinds, is_negated, self._ignores_case)

    def _next(self, in_class: bool = False) -> str:
        r"""A character as it is meant, or "\w"."""
        if self._at == len(self._pattern):
            self._refuse("an end within a class or an escape")
        char = self._pattern[self._at]
        if char != "\\":
            self._at += 1
            return char
        letter = self._pattern[self._at + 1 : self._at + 2]
        if found := _HEX.match(self._pattern, self._at + 1):
            code = int(found[found.lastindex or 1], 16)
            if code > 0x10FFFF:
                self._refuse("a character that there is not")
            self._at = found.end()
            return chr(code)
        if letter.lower() in _KINDS:
            self._at += 2
            return "\\" + letter
        is_plain = letter and not (letter.isascii() and letter.isalnum())
        known = letter if is_plain else "\b" if in_class and letter == "b" else _SIGNS.get(letter)
        if known is None:
            self._refuse("a border of words or text, a reference, or no escape")
        self._at += 2
        return known

    def _take(self, char: str) -> bool:
        is_there = self._pattern.startswith(char, self._at)
        self._at += is_there
        return is_there

    def _refuse(self, what: str) -> NoReturn:
        where = self._pattern[self._at : self._at + 8] or self._pattern[-8:]
        raise RequestError(
            f"{self._name} cannot be followed: {what}, at {where!r}", param=self._name
        )


def _bounds(found: re.Match[str]) -> tuple[int, int | None]:
    if found[0] in "*+?":
        return int(found[0] == "+"), 1 if found[0] == "?" else None
    least, comma, most = found.groups()
    if not comma:
        return _number(least), _number(least)
    return _number(least or "0"), _number(most) if most else None


def _number(digits: str) -> int:
    return min(int(digits[:10]), _ENORMOUS)
