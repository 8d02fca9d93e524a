"""Arguments in words other than JSON's, read as JSON that grows while they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from kvasir.toolcalls.format import Literals

SPACES = " \n\r\t"
MAX_DEPTH = 512
"""Levels; deeper ones are left out. Common readers of JSON end at 1,000 (Python) or later."""
MAX_WORD = 256
"""Characters of a key without quotes, or of a number; more are no call."""
_WORD = re.compile(r"[^\s=:,'\"()\[\]{}<>\ud800-\udfff]+")
_OUTER_KEY = re.compile(r"[^=:,'\"()\[\]{}\n]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"true": "true", "True": "true", "false": "false", "False": "false"}
_WORDS |= {"null": "null", "None": "null"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|[^xuU0-7])")
_PLAIN = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "\n": "",
    "/": "/",
}
_BEGUN = re.compile(r"\\(x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7})?")

_EITHER = Literals(assign=":", end="", quotes=('"', "'"), has_escapes=True)

Step = tuple[str, int] | None
"""JSON, and where reading goes on; None where more text is needed."""


class LiteralArguments:
    """Where the text stops being of the language, everything open is closed, and that is all."""

    def __init__(self, form: Literals, names: Iterable[str] = ()) -> None:
        """``names``: keys of the arguments that are known, whatever they are made of."""
        self._form = form
        odd = (name for name in names if not is_plain(name))
        self._odd = sorted(odd, key=len, reverse=True)
        """Known keys that are no words, the longest first."""
        self._open: list[tuple[str, str]] = [(form.end, "}")]
        """Of each level: what ends it here and in JSON."""
        self._counts = [0]
        self._quote = ""
        self._is_key = False
        self._state: Callable[[str, int], Step] = self._member
        self.is_done = False

    def read(self, text: str) -> tuple[str, int]:
        said: list[str] = []
        at = 0
        while not self.is_done:
            at = self._behind_space(text, at)
            step = self._state(text, at)
            if step is None:
                break
            said.append(step[0])
            at = step[1]
        return "".join(said), at

    def _behind_space(self, text: str, at: int) -> int:
        if self._state != self._text:
            while at < len(text) and text[at] in SPACES:
                at += 1
        return at

    def _member(self, text: str, at: int) -> Step:
        """A key, an element, or the end of a level."""
        if at == len(text):
            return None
        here, there = self._open[-1]
        if text.startswith(here, at):
            return self._closed(at)
        return self._key(text, at) if there == "}" else self._value(text, at)

    def _key(self, text: str, at: int) -> Step:
        named = self._named(text, at) if len(self._open) == 1 else ""
        quote = "" if named else self._quote_at(text, at)
        if named is None or quote is None:
            return None
        begin = ("{" if len(self._open) == 1 else "") if not self._counts[-1] else ", "
        if quote and len(self._open) > 1:
            self._counts[-1] += 1
            self._quote, self._is_key, self._state = quote, True, self._text
            return begin + '"', at + len(quote)
        found = (_OUTER_KEY if len(self._open) == 1 else _WORD).match(text, at)
        end = at + len(named) if named else found.end() if found else -1
        if not named and (found is None or end - at > MAX_WORD):
            return self._broken(at)
        if end == len(text):
            return None
        self._counts[-1] += 1
        self._state = self._assign
        return f"{begin}{json.dumps(text[at:end].rstrip(), ensure_ascii=False)}: ", end

    def _named(self, text: str, at: int) -> str | None:
        """The odd key that is assigned to; empty: none; None: one may come."""
        for name in self._odd:
            if text.startswith(name, at):
                end = self._behind_space(text, at + len(name))
                if end == len(text):
                    return None
                if text.startswith(self._form.assign, end):
                    return name
            elif len(text) - at < len(name) and name.startswith(text[at:]):
                return None
        return ""

    def _assign(self, text: str, at: int) -> Step:
        if at == len(text):
            return None
        sign = self._form.assign if len(self._open) == 1 else ":"
        if not text.startswith(sign, at):
            return self._broken(at, "null")
        self._state = self._value
        return "", at + len(sign)

    def _value(self, text: str, at: int) -> Step:
        quote = self._quote_at(text, at)
        if quote is None:
            return None
        comma = ""
        if self._open[-1][1] == "]":
            comma = ", " if self._counts[-1] else ""
        if quote:
            self._count_element()
            self._quote, self._is_key, self._state = quote, False, self._text
            return comma + '"', at + len(quote)
        if text[at] in "[({":
            return self._opened(text[at], comma, at)
        found = _WORD.match(text, at)
        if found is None or found.end() - at > MAX_WORD:
            return self._broken(at, "" if self._open[-1][1] == "]" else "null")
        if found.end() == len(text):
            return None
        self._count_element()
        self._state = self._separator
        return comma + json_of(found[0]), found.end()

    def _count_element(self) -> None:
        if self._open[-1][1] == "]":
            self._counts[-1] += 1

    def _opened(self, char: str, comma: str, at: int) -> Step:
        if len(self._open) == MAX_DEPTH:
            return self._broken(at, "" if self._open[-1][1] == "]" else "null")
        self._count_element()
        here, there = {"[": ("]", "]"), "(": (")", "]"), "{": ("}", "}")}[char]
        self._open.append((here, there))
        self._counts.append(0)
        self._state = self._member
        return comma + ("{" if there == "}" else "["), at + 1

    def _closed(self, at: int) -> Step:
        here, there = self._open.pop()
        n = self._counts.pop()
        if not self._open:
            self.is_done = True
            return "}" if n else "{}", at
        self._state = self._separator
        return there, at + len(here)

    def _separator(self, text: str, at: int) -> Step:
        if at == len(text):
            return None
        if text[at] == ",":
            self._state = self._member
            return "", at + 1
        return self._closed(at) if text.startswith(self._open[-1][0], at) else self._broken(at)

    def _broken(self, at: int, value: str = "") -> Step:
        """``value``: in the place of one that is missing."""
        self.is_done = True
        begin = "{" if not self._counts[0] else ""
        return value + begin + "".join(there for _, there in reversed(self._open)), at

    def _quote_at(self, text: str, at: int) -> str | None:
        """Empty: there is none; None: there may come one."""
        rest = text[at : at + 32]
        found = next((quote for quote in self._form.quotes if rest.startswith(quote)), "")
        if not found and any(quote.startswith(rest) for quote in self._form.quotes):
            return None
        return found

    def _text(self, text: str, at: int) -> Step:
        """Up to an escape or the end of a text."""
        end = text.find(self._quote, at)
        slash = text.find("\\", at, end if end >= 0 else None) if self._form.has_escapes else -1
        if slash == at:
            return self._escape(text, at)
        if slash > at:
            return _inside(text[at:slash]), slash
        if end < 0:
            n_held = next(
                (n for n in range(len(self._quote) - 1, 0, -1) if text.endswith(self._quote[:n])), 0
            )
            end = max(at, len(text) - n_held)
            return None if end == at else (_inside(text[at:end]), end)
        self._state = self._assign_text if self._is_key else self._separator
        return _inside(text[at:end]) + '"', end + len(self._quote)

    def _assign_text(self, text: str, at: int) -> Step:
        step = self._assign(text, at)
        return None if step is None else (": " + step[0], step[1])

    def _escape(self, text: str, at: int) -> Step:
        found = _ESCAPE.match(text, at)
        if found is None:
            return None if _BEGUN.fullmatch(text, at) else (_inside("\\"), at + 1)
        octal = found[1][0] in "01234567"
        if octal and found.end() == len(text) and len(found[1]) < 3:
            return None
        return _escaped(found[1]), found.end()


class LiteralValue(LiteralArguments):
    """One text, list or mapping, as JSON or as Python writes it."""

    def __init__(self) -> None:
        super().__init__(_EITHER)
        self._open = [("", "")]
        self._counts = [1]
        self._state = self._value

    def _separator(self, text: str, at: int) -> Step:
        if len(self._open) > 1:
            return super()._separator(text, at)
        self.is_done = True
        return "", at


def is_plain(key: str) -> bool:
    """Whether a key of the arguments is read as itself, known or not."""
    return _OUTER_KEY.fullmatch(key) is not None and len(key) <= MAX_WORD


def json_of(word: str) -> str:
    """A number, true, false or null, also in Python's words; else a text."""
    if word in _WORDS:
        return _WORDS[word]
    return word if _NUMBER.fullmatch(word) else json.dumps(word, ensure_ascii=False)


def _escaped(said: str) -> str:
    """JSON of what stands behind a backslash in Python."""
    kind, digits = said[0], said[1:]
    if kind == "u":
        return f"\\u{digits}"
    if kind in "xU" and digits:
        code = int(digits, 16)
        return json.dumps(chr(code))[1:-1] if code <= 0x10FFFF else _inside("\\" + said)
    if kind in "01234567":
        return json.dumps(chr(int(said, 8)))[1:-1]
    if kind in "\\'\"":
        return _inside(kind)
    return _inside(_PLAIN.get(kind, "\\" + said))


def _inside(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
