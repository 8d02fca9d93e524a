"""How a family of models writes reasoning and tool calls, as data.

A pattern is text in which ``~`` stands for white space that may be there, ``$name`` for the name of
a tool, ``$args`` for its arguments, ``$id`` and ``$index`` for what the model says of a call
beside.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

import msgspec

FIELDS = re.compile(r"(~|\$name|\$args|\$id|\$index)")

Part = str
"""A field or ``~``, or else text."""


class Parameter(msgspec.Struct, frozen=True, tag="parameter"):
    """An argument that is written between tags: its key, its value, and what surrounds them. Text
    is written as it is, everything else as JSON."""

    before: str
    between: str
    after: str
    as_text: str = ""
    """Behind ``between`` where the value is text; without it the tool's schema says what it is."""
    as_json: str = ""
    """The same for all other values."""


class Literals(msgspec.Struct, frozen=True, tag="literals"):
    """Arguments as pairs of key and value, in a language like JSON with other words."""

    assign: str
    """Between key and value; inside of values it is a colon."""
    end: str
    """Of all arguments; the pattern of the call writes it."""
    quotes: tuple[str, ...]
    """Around texts; the first is written."""
    has_escapes: bool = False
    """Whether texts have Python's escapes, or none."""
    words: tuple[str, str, str] = ("true", "false", "null")
    has_bare_keys: bool = False
    """Whether keys inside of values have no quotes."""
    is_sorted: bool = False
    """Whether keys come in the order of the alphabet, or of the schema."""


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    call: str
    """The pattern of one call."""
    open: str = ""
    """Before the first call."""
    between: str | None = "~"
    """Between two calls; None where there can be only one."""
    close: str = ""
    """After the last call."""
    at_start: bool = False
    """Whether a call is known by nothing but that the message begins with it."""
    starts: tuple[str, ...] = ()
    """Other patterns of the first call, with which a message begins."""
    arguments: Parameter | Literals | None = None
    """None: a JSON object."""
    id_form: str = "call_$24"
    """Of the ids that clients see: ``$n`` stands for n hexadecimal digits."""

    @property
    def first(self) -> tuple[Part, ...]:
        return parts_of(self.open + self.call)

    @property
    def beginnings(self) -> tuple[tuple[Part, ...], ...]:
        """Calls with which a message begins."""
        own = (self.first,) if self.at_start else ()
        return (*own, *(parts_of(pattern) for pattern in self.starts))

    @property
    def next(self) -> tuple[Part, ...]:
        return () if self.between is None else parts_of(self.between + self.call)

    @property
    def last(self) -> tuple[Part, ...]:
        return parts_of(self.close)

    @property
    def trigger(self) -> str:
        """The text with which free text ends and calls begin."""
        return self.first[0]

    @property
    def texts(self) -> list[str]:
        """All that its patterns are made of."""
        found = [self.open, self.call, self.between or "", self.close, *self.starts]
        form = self.arguments
        if isinstance(form, Parameter):
            found += [form.before, form.between, form.after, form.as_text, form.as_json]
        return found + (list(form.quotes) if isinstance(form, Literals) else [])


class ContentPart(msgspec.Struct, frozen=True):
    """What content stands between in models that name each part of an answer."""

    begin: str
    end: str = ""
    """Empty for the last part."""


class Reasoning(msgspec.Struct, frozen=True):
    """What reasoning is written between."""

    begin: str
    end: str
    content: tuple[ContentPart, ...] = ()
    """Not empty: there may be more reasoning after a part of the content."""
    glue: str = ""
    """Between two parts."""

    @property
    def texts(self) -> list[str]:
        segments = [text for one in self.content for text in (one.begin, one.end)]
        return [self.begin, self.end, *segments, self.glue]

    @property
    def dropped(self) -> tuple[str, ...]:
        """Markers that may stand in content, and belong to none."""
        if not self.content:
            return ()
        begins = [one.begin for one in self.content]
        return tuple(text for text in dict.fromkeys((*begins, *self.ends)) if text)

    @property
    def ends(self) -> tuple[str, ...]:
        """Those among them behind which another part begins."""
        return (*(one.end for one in self.content), self.glue) if self.content else ()


Kind = Literal["text", "json"]


@cache
def parts_of(pattern: str) -> tuple[Part, ...]:
    return tuple(part for part in FIELDS.split(pattern) if part)


def literal_of(parts: tuple[Part, ...]) -> str:
    """The first text among ``parts``, before which there is at most white space."""
    return parts[1] if parts[0] == "~" else parts[0]
