"""Names of special tokens in the words of a user stay words: they cannot open or close a turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from kvasir.tokenizer.tokenizer import Tokenizer

_MARK = "\u205e"
"""A rare printable character, which no filter escapes."""
_CUT = f"{_MARK};"


class Guard:
    """Marks special names in messages before a template runs, and reads them as text afterwards.

    A name is cut by a mark after its first character. What cannot be cut, a mark or a name of one
    character, is written as its number.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces = {i: piece for i in tokenizer.special_ids if (piece := tokenizer.piece(i))}
        names = sorted(self._pieces.values(), key=len, reverse=True)
        self._names = _one_of(names)
        self._normalized_names = _one_of([tokenizer.normalize(name) for name in names])
        hidden = [_MARK, *(name for name in names if len(name) == 1)]
        self._hidden = _one_of(hidden)
        self._marks = re.compile(f"{_MARK}({'|'.join(str(ord(char)) for char in hidden)})?;")

    def finds(self, value: Any) -> bool:
        """Whether any string in ``value`` (JSON-like), or texts of parts that follow one another,
        hold a special token's name or a mark."""
        return any(self._holds(text) for text in _strings(value))

    def mark(self, value: Any) -> Any:
        """A copy of ``value`` in which no string holds a special token's name."""
        if isinstance(value, str):
            return self._mark(value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return _cut_apart([self.mark(item) for item in value])
        return value

    def encode(self, text: str) -> list[int]:
        """Ids of a text rendered from marked messages: unmarked special names alone are special."""
        parts: list[str | int] = []
        at = 0
        for token, begin, end in self._tokenizer.specials(text):
            name = self._pieces[token]
            begin = text.find(name, begin, end)  # spaces beside it may be part of the token
            if begin >= 0:
                parts += [self._unmarked(text[at:begin]), token]
                at = begin + len(name)
        return self._tokenizer.spell([*parts, self._unmarked(text[at:])])

    def _holds(self, text: str) -> bool:
        if _MARK in text or self._names.search(text):
            return True
        return self._normalized_names.search(self._tokenizer.normalize(text)) is not None

    def _mark(self, text: str) -> str:
        parts: list[str] = []
        at = 0
        for begin in self._begins(text):
            parts.append(self._hide(text[at : begin + 1]))
            at = begin + 1
        return _CUT.join([*parts, self._hide(text[at:])])

    def _begins(self, text: str) -> Iterator[int]:
        """Where names begin, those that overlap another included."""
        found = self._names.search(text)
        while found:
            yield found.start()
            found = self._names.search(text, found.start() + 1)

    def _hide(self, text: str) -> str:
        return self._hidden.sub(lambda found: f"{_MARK}{ord(found[0])};", text)

    def _unmarked(self, text: str) -> str:
        return self._marks.sub(lambda found: chr(int(found[1])) if found[1] else "", text)


def _one_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")


def _strings(value: Any) -> list[str]:
    found: list[str] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            stack += (*item, *_runs(item))
    return found


def _runs(items: Sequence[Any]) -> list[str]:
    """Texts that a template may write one behind the other."""
    texts = groupby(map(_text_of, items), lambda text: text is not None)
    return ["".join(text or "" for text in run) for is_text, run in texts if is_text]


def _cut_apart(items: list[Any]) -> list[Any]:
    """Such texts, which make no name together."""
    for item, following in pairwise(items):
        if _text_of(item) is not None and _text_of(following) is not None:
            item["text"] += _CUT
    return items


def _text_of(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None
