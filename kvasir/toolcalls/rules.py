"""RuleLines of a grammar in which markers may be tokens of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kvasir.grammar.constraint import guidance
from kvasir.toolcalls.reading import FIRST_MARK, LAST_MARK

_MARK = re.compile(f"([{chr(FIRST_MARK)}-{chr(LAST_MARK)}])")
ENDS = (r"ALL: /(.|\n)*/", r"SP: /[ \n\r\t]{0,8}/")
"""Any text, and white space."""
WORD = "[a-zA-Z_][a-zA-Z0-9_]{0,63}"
"""A key without quotes."""


class RuleLines:
    """In llguidance's variant of Lark, as far as they are written."""

    def __init__(self, marks: Mapping[int, str]) -> None:
        """``marks``: of a reading."""
        self._ids = {mark: token for token, mark in marks.items()}
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(line)

    def until(self, name: str, end: str, text: str = "ALL") -> str:
        """The name of a rule for text up to ``end``, and for that."""
        lazy = "" if is_mark(end) else "[lazy]"
        self.lines.append(f"{name}{lazy}: {text} {self.literal(end)}")
        return name

    def literal(self, text: str) -> str:
        found = []
        for piece in _MARK.split(text):
            if piece in self._ids:
                found.append(f"<[{self._ids[piece]}]>")
            elif piece:
                found.append(json.dumps(piece, ensure_ascii=False))
        return " ".join(found)


def json_of(schema: Mapping[str, Any]) -> str:
    """``schema``, a prepared one, as a rule has it behind %json."""
    return json.dumps({**schema, "x-guidance": guidance(schema)})


def is_mark(text: str) -> bool:
    """Whether it begins with a token of its own."""
    return _MARK.match(text) is not None


def regex(text: str) -> str:
    escaped = (f"\\{char}" if char in r"\.+*?()|[]{}^$/" else char for char in text)
    return "".join(escaped).replace("\n", "\\n")
