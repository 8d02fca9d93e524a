"""The arguments of a call, as JSON that grows while they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Protocol

from kvasir.toolcalls.format import Kind, Literals, Parameter
from kvasir.toolcalls.literals import MAX_WORD, SPACES, LiteralArguments, LiteralValue, json_of

_STRUCTURE = re.compile(r'[{}\[\]"]')
_STRING = re.compile(r'["\\]')


class ArgumentReader(Protocol):
    def read(self, text: str) -> tuple[str, int]:
        """JSON that ``text`` adds, and how many of its characters are used; the others are given
        again with what follows."""
        ...

    @property
    def is_done(self) -> bool: ...


class JsonArguments:
    """An object, which is passed on as it is."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_string = False
        self._is_escape = False
        self.is_done = False

    def read(self, text: str) -> tuple[str, int]:
        at = 0
        if self._depth == 0 and not text.startswith("{"):
            self.is_done = bool(text)
            return "", 0
        while at < len(text) and not self.is_done:
            at = self._step(text, at)
        return text[:at], at

    def _step(self, text: str, at: int) -> int:
        if self._is_escape:
            self._is_escape = False
            return at + 1
        found = (_STRING if self._is_string else _STRUCTURE).search(text, at)
        if found is None:
            return len(text)
        char = found[0]
        if char == "\\":
            self._is_escape = True
        elif char == '"':
            self._is_string = not self._is_string
        else:
            self._depth += 1 if char in "{[" else -1
            self.is_done = self._depth == 0
        return found.end()


class TaggedArguments:
    """Each parameter between tags of its own."""

    def __init__(self, tags: Parameter, kinds: Mapping[str, Kind]) -> None:
        self._tags = tags
        self._said: tuple[tuple[Kind, str], ...] = (("text", tags.as_text), ("json", tags.as_json))
        self._kinds = kinds
        self._n = 0
        self._state = "before"
        self._kind: Kind = "json"
        self._nested = LiteralValue()
        self.is_done = False

    def read(self, text: str) -> tuple[str, int]:
        said: list[str] = []
        at = 0
        while not self.is_done:
            more, used = getattr(self, f"_read_{self._state}")(text[at:])
            said += more
            if used is None:
                break
            at += used
        return "".join(said), at

    def _read_before(self, text: str) -> tuple[list[str], int | None]:
        begin = self._tags.before
        rest = text.lstrip(SPACES)
        skipped = len(text) - len(rest)
        if rest.startswith(begin):
            self._state = "key"
            return [], skipped + len(begin)
        if begin.startswith(rest):
            return [], None
        self.is_done = True
        return ["}" if self._n else "{}"], skipped

    def _read_key(self, text: str) -> tuple[list[str], int | None]:
        end = text.find(self._tags.between)
        if end < 0:
            return [], None
        key = text[:end]
        end += len(self._tags.between)
        if self._tags.as_text:
            found = self._said_kind(text[end:])
            if found is None:
                return [], None
            self._kind, n_said = found
            end += n_said
        else:
            self._kind = self._kinds.get(key, "json")
        head = f"{', ' if self._n else '{'}{json.dumps(key, ensure_ascii=False)}: "
        self._n += 1
        self._state = "value" if self._kind == "text" else "json"
        return [head + ('"' if self._kind == "text" else "")], end

    def _said_kind(self, text: str) -> tuple[Kind, int] | None:
        """What the model says that a value is; None where more of it is needed."""
        for kind, said in self._said:
            if text.startswith(said):
                return kind, len(said)
        if any(said.startswith(text) for _, said in self._said):
            return None
        return "text", 0

    def _read_value(self, text: str) -> tuple[list[str], int | None]:
        """Text, which is what follows until the tag."""
        after = self._tags.after
        end = text.find(after)
        if end < 0:
            n_safe = len(text) - overlap(text, after)
            if n_safe:
                return [_inside(text[:n_safe])], n_safe
            return [], None
        self._state = "before"
        return [_inside(text[:end]) + '"'], end + len(after)

    def _read_json(self, text: str) -> tuple[list[str], int | None]:
        """Another value: many templates write it as Python does. What is neither is text."""
        rest = text.lstrip(SPACES)
        if rest[:1] in tuple("[{\"'"):
            self._nested = LiteralValue()
            self._state = "nested"
            return [], len(text) - len(rest)
        end = text.find(self._tags.after)
        if end >= 0:
            self._state = "before"
            word = text[:end].strip(SPACES)
            return [json_of(word)], end + len(self._tags.after)
        if len(rest) <= MAX_WORD:
            return [], None
        self._state = "value"
        return ['"'], 0

    def _read_nested(self, text: str) -> tuple[list[str], int | None]:
        said, used = self._nested.read(text)
        if not self._nested.is_done:
            return [said], used or None
        self._state = "after"
        return [said], used

    def _read_after(self, text: str) -> tuple[list[str], int | None]:
        """The tag behind a value."""
        rest = text.lstrip(SPACES)
        after = self._tags.after.lstrip(SPACES)
        if rest.startswith(after):
            self._state = "before"
            return [], len(text) - len(rest) + len(after)
        if after.startswith(rest):
            return [], None
        self.is_done = True
        return ["}"], 0


def _inside(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def overlap(text: str, marker: str) -> int:
    """Characters at the end of ``text`` that may be the beginning of ``marker``."""
    most = min(len(text), len(marker) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(marker[:n])), 0)


def reader_of(form: Parameter | Literals | None, kinds: Mapping[str, Kind]) -> ArgumentReader:
    if isinstance(form, Parameter):
        return TaggedArguments(form, kinds)
    return JsonArguments() if form is None else LiteralArguments(form, kinds)
