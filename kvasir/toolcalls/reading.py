"""How one answer is to be read: a value, so that a stored request is read the same again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.format import (
    ContentPart,
    Kind,
    Literals,
    Parameter,
    Reasoning,
    ToolFormat,
)

Thoughts = Literal["apart", "content", "both"]
"""Where reasoning is told: as such, in the content as the model wrote it, or in both."""
FIRST_MARK = 0xD800
"""Markers that are tokens of their own stand in texts as lone surrogates, which no decoded text
has: what a model spells of the same letters is no marker."""
LAST_MARK = 0xDFFF
_DIGITS = re.compile(r"\$(\d+)")


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    format: ToolFormat | None = None
    """None: the request has no tools."""
    reasoning: Reasoning | None = None
    is_open: bool = False
    """Whether the prompt ends inside of reasoning."""
    kinds: dict[str, dict[str, Kind]] = {}
    """By tool and parameter, for formats that write texts as they are, or names as no JSON."""
    marks: dict[int, str] = {}
    """What markers stand as, by their ids."""
    names: tuple[str, ...] = ()
    """How they are spelled, in the order of what they stand as."""
    key: str = ""
    """What ids of calls are made from: differs from answer to answer, the same in a replay."""
    thoughts: Thoughts = "apart"
    must_call: bool = False
    """Whether the answer is calls, without text of its own."""

    def id_of(self, choice: int, number: int, name: str) -> str:
        """Of call ``number`` of a choice."""
        form = self.format.id_form if self.format else "call_$24"
        seed = f"{self.key}:{choice}:{number}".encode()
        digits = hashlib.blake2b(seed, digest_size=16).hexdigest()
        found = form.replace("$name", name).replace("$index", str(number))
        return _DIGITS.sub(lambda match: digits[: int(match[1])], found)

    def spelled(self, text: str) -> str:
        """``text`` with markers as they are spelled."""
        if text.isascii():
            return text
        return "".join(self._spelled(char) for char in text)

    def _spelled(self, char: str) -> str:
        if not FIRST_MARK <= ord(char) <= LAST_MARK:
            return char
        number = ord(char) - FIRST_MARK
        return self.names[number] if number < len(self.names) else "\ufffd"


def with_marks(reading: Reading, special: Mapping[str, int]) -> Reading:
    """``special``: ids of tokens that no text spells. Markers among them are known by their ids."""
    used = _texts(reading)
    found = [name for name in special if name and any(name in text for text in used)]
    found.sort(key=len, reverse=True)
    marks = {name: chr(FIRST_MARK + i) for i, name in enumerate(found)}

    def put(text: str) -> str:
        for name, mark in marks.items():
            text = text.replace(name, mark)
        return text

    form, thoughts = reading.format, reading.reasoning
    return msgspec.structs.replace(
        reading,
        format=form and _marked_format(form, put),
        reasoning=thoughts and _marked_reasoning(thoughts, put),
        marks={special[name]: mark for name, mark in marks.items()},
        names=tuple(found),
    )


def bound(reading: Reading, tokenizer: Tokenizer) -> Reading:
    """``reading`` of what a model of ``tokenizer`` writes."""
    pieces = ((tokenizer.piece(token), token) for token in sorted(tokenizer.special_ids))
    return with_marks(reading, {piece: token for piece, token in pieces if piece})


def _marked_format(form: ToolFormat, put: Callable[[str], str]) -> ToolFormat:
    said = form.arguments
    if isinstance(said, Parameter):
        said = Parameter(*(put(text) for text in msgspec.structs.astuple(said)))
    elif isinstance(said, Literals):
        said = msgspec.structs.replace(said, quotes=tuple(map(put, said.quotes)))
    return msgspec.structs.replace(
        form,
        open=put(form.open),
        call=put(form.call),
        between=None if form.between is None else put(form.between),
        close=put(form.close),
        starts=tuple(map(put, form.starts)),
        arguments=said,
    )


def _marked_reasoning(thoughts: Reasoning, put: Callable[[str], str]) -> Reasoning:
    content = tuple(ContentPart(put(one.begin), put(one.end)) for one in thoughts.content)
    return Reasoning(put(thoughts.begin), put(thoughts.end), content, put(thoughts.glue))


def _texts(reading: Reading) -> list[str]:
    return [
        *(reading.reasoning.texts if reading.reasoning else ()),
        *(reading.format.texts if reading.format else ()),
    ]
