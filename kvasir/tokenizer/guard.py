"""Names of special tokens in the words of a user stay words: they cannot open or close a turn."""

from __future__ import annotations

import re
from typing import Any

from kvasir.tokenizer.tokenizer import Tokenizer

_MARK = "\u205e"
"""A rare printable character, which no filter escapes; a real one becomes ``_SELF``."""
_CUT = _MARK + "1"
_SELF = _MARK + "2"


class Guard:
    """Marks special names in messages before a template runs, and reads them as text afterwards."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        pieces = {i: tokenizer.piece(i) for i in tokenizer.special_ids}
        self._ids = {piece: i for i, piece in pieces.items() if piece}
        names = sorted(self._ids, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def finds(self, value: Any) -> bool:
        """Whether any string in ``value`` (JSON-like) holds a special token's name or a mark."""
        return any(_MARK in text or self._names.search(text) for text in _strings(value))

    def mark(self, value: Any) -> Any:
        """A copy of ``value`` with every special name cut by a mark after its first character."""
        if isinstance(value, str):
            return self._names.sub(
                lambda found: found[0][0] + _CUT + found[0][1:], value.replace(_MARK, _SELF)
            )
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        return value

    def encode(self, text: str) -> list[int]:
        """Ids of a text rendered from marked messages: unmarked special names alone are special."""
        ids: list[int] = []
        at = 0
        for found in self._names.finditer(text):
            ids += self._plain(text[at : found.start()])
            ids.append(self._ids[found[0]])
            at = found.end()
        return ids + self._plain(text[at:])

    def _plain(self, text: str) -> list[int]:
        text = text.replace(_CUT, "").replace(_SELF, _MARK)
        return self._tokenizer.encode(text, add_special=False, parse_special=False)


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
            stack += item
    return found
