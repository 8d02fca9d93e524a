"""Structural tags as a tree: texts, schemas and expressions, one after the other, repeated, between
tags, or behind triggers in free text.

The form is that of XGrammar, which vLLM and SGLang take as ``structural_tag`` with a ``format``;
its parts of tokens, and styles of arguments other than JSON, are refused.
https://xgrammar.mlc.ai/docs/structural_tag/structural_tag.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from kvasir.grammar.constraint import Constraint, guidance, lark_grammar, lark_regex
from kvasir.grammar.errors import InvalidGrammar
from kvasir.grammar.limits import GrammarLimits
from kvasir.grammar.schema import SearchEfforts, prepare

MAX_REPEATS = 10_000
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_REPEATS)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _AnyFormat(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"
): ...


class ConstString(_AnyFormat, frozen=True, tag="const_string"):
    value: str


class JsonSchema(_AnyFormat, frozen=True, tag="json_schema"):
    json_schema: dict[str, Any] | bool
    style: Literal["json"] = "json"


class Regex(_AnyFormat, frozen=True, tag="regex"):
    pattern: str


class AnyText(_AnyFormat, frozen=True, tag="any_text"): ...


class InOrder(_AnyFormat, frozen=True, tag="sequence"):
    elements: Annotated[list[Format], msgspec.Meta(min_length=1)]


class OneOf(_AnyFormat, frozen=True, tag="or"):
    elements: Annotated[list[Format], msgspec.Meta(min_length=1)]


class Maybe(_AnyFormat, frozen=True, tag="optional"):
    content: Format


class OneOrMore(_AnyFormat, frozen=True, tag="plus"):
    content: Format


class AnyNumber(_AnyFormat, frozen=True, tag="star"):
    content: Format


class Repeat(_AnyFormat, frozen=True, tag="repeat"):
    min: _Count
    max: Annotated[int, msgspec.Meta(ge=-1, le=MAX_REPEATS)]
    content: Format


class TagFormat(_AnyFormat, frozen=True, tag="tag"):
    begin: str
    content: Format
    end: str | Annotated[list[_Name], msgspec.Meta(min_length=1)]


class TriggeredTags(_AnyFormat, frozen=True, tag="triggered_tags"):
    triggers: Annotated[list[_Name], msgspec.Meta(min_length=1)]
    tags: Annotated[list[TagFormat], msgspec.Meta(min_length=1)]
    at_least_one: bool = False
    stop_after_first: bool = False


class TagsWithSeparator(_AnyFormat, frozen=True, tag="tags_with_separator"):
    tags: Annotated[list[TagFormat], msgspec.Meta(min_length=1)]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format: TypeAlias = (
    ConstString | JsonSchema | Regex | AnyText | InOrder | OneOf | Maybe | OneOrMore | AnyNumber
    | Repeat | TagFormat | TriggeredTags | TagsWithSeparator
)  # fmt: skip


class _Fixed(msgspec.Struct, frozen=True):
    """One of ``texts``."""

    texts: tuple[str, ...]

    @property
    def lark(self) -> str:
        return "(" + " | ".join(map(json.dumps, self.texts)) + ")"


class _LarkRule(msgspec.Struct, frozen=True):
    lark: str


class _Free(msgspec.Struct, frozen=True):
    """Any text, up to what is fixed behind it."""


_Part: TypeAlias = _Fixed | _LarkRule | _Free


class _FormatAsked(msgspec.Struct, frozen=True):
    format: Format


def format_grammar(asked: object, limits: GrammarLimits) -> Constraint:
    """``asked``: a mapping with a ``format``. Raises InvalidGrammar and UnsupportedSchema."""
    try:
        whole = msgspec.convert(asked, _FormatAsked)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InvalidGrammar(f"structural_tag: {error}") from None
    except RecursionError:
        raise InvalidGrammar("structural_tag is nested too deeply") from None
    writer = _FormatWriter(limits)
    start = writer.joined(writer.parts(whole.format, is_last=True), is_last=True)
    head = ["%llguidance {}", f"start: {start}", r"TEXT: /(.|\n)*/"]
    text = lark_grammar("\n".join((*head, *writer.rules)), limits).text
    return Constraint(text, tuple(dict.fromkeys(writer.warnings)))


class _FormatWriter:
    """Collects rules of Lark. ``is_last``: nothing follows in the answer."""

    def __init__(self, limits: GrammarLimits) -> None:
        self.rules: list[str] = []
        self.warnings: list[str] = []
        self._limits = limits
        self._efforts = SearchEfforts()
        self._depth = 0

    def parts(self, what: Format, *, is_last: bool) -> list[_Part]:
        self._depth += 1
        if self._depth > self._limits.depth:
            raise InvalidGrammar(f"structural_tag is deeper than {self._limits.depth} formats")
        found = _WRITERS[type(what)](self, what, is_last)
        self._depth -= 1
        return found

    def joined(self, parts: Sequence[_Part], *, is_last: bool) -> str:
        """As one expression. Raises InvalidGrammar where free text has no end."""
        found: list[str] = []
        left = list(parts)
        while left:
            part = left.pop(0)
            if not isinstance(part, _Free):
                found.append(part.lark)
            elif left and isinstance(end := left[0], _Fixed):
                left.pop(0)
                found.append(self._named(f"TEXT {end.lark}", "[lazy]"))
            elif is_last and not left:
                found.append("TEXT")
            else:
                raise InvalidGrammar(
                    "structural_tag: free text ends at the fixed text behind it, the end of a tag "
                    "or a const_string, or at the end of the answer: here neither follows"
                )
        return self._named(" ".join(found) or '""')

    def whole(self, what: Format) -> str:
        """Of what something may follow."""
        return self.joined(self.parts(what, is_last=False), is_last=False)

    def _named(self, lark: str, how: str = "") -> str:
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}{how}: {lark}")
        return name

    def const_string(self, what: ConstString, _: bool) -> list[_Part]:
        return [_Fixed((what.value,))] if what.value else []

    def json_schema(self, what: JsonSchema, _: bool) -> list[_Part]:
        prepared = prepare(what.json_schema, limits=self._limits, efforts=self._efforts)
        self.warnings += prepared.warnings
        whole = {**prepared.schema, "x-guidance": guidance(prepared.schema)}
        return [_LarkRule(f"%json {json.dumps(whole)}")]

    def regex(self, what: Regex, _: bool) -> list[_Part]:
        return [_LarkRule(lark_regex(what.pattern))]

    def any_text(self, what: AnyText, _: bool) -> list[_Part]:
        return [_Free()]

    def in_order(self, what: InOrder, is_last: bool) -> list[_Part]:
        last = len(what.elements) - 1
        return [
            part
            for i, one in enumerate(what.elements)
            for part in self.parts(one, is_last=is_last and i == last)
        ]

    def one_of(self, what: OneOf, is_last: bool) -> list[_Part]:
        found = [
            self.joined(self.parts(one, is_last=is_last), is_last=is_last) for one in what.elements
        ]
        return [_LarkRule(f"({' | '.join(found)})")]

    def repeated(self, what: Maybe | OneOrMore | AnyNumber | Repeat, is_last: bool) -> list[_Part]:
        signs = {Maybe: "?", OneOrMore: "+", AnyNumber: "*"}
        if isinstance(what, Repeat):
            if 0 <= what.max < what.min:
                raise InvalidGrammar(f"structural_tag: repeat has min {what.min}, max {what.max}")
            sign = f"{{{what.min},{what.max if what.max >= 0 else ''}}}"
            return [_LarkRule(f"{self.whole(what.content)}{sign}")] if what.max else []
        return [_LarkRule(f"{self.whole(what.content)}{signs[type(what)]}")]

    def tag(self, what: TagFormat, is_last: bool) -> list[_Part]:
        ends = (what.end,) if isinstance(what.end, str) else tuple(what.end)
        end: list[_Part] = [_Fixed(ends)] if ends != ("",) else []
        begin: list[_Part] = [_Fixed((what.begin,))] if what.begin else []
        return [*begin, *self.parts(what.content, is_last=is_last and not end), *end]

    def triggered(self, what: TriggeredTags, is_last: bool) -> list[_Part]:
        behind = " | ".join(self._behind_text(tag, what.triggers) for tag in what.tags)
        at_once = " | ".join(self.whole(tag) for tag in what.tags) if what.at_least_one else ""
        if what.stop_after_first:
            if what.at_least_one:
                return [_LarkRule(f"({at_once})")]
            if not is_last:
                raise InvalidGrammar(
                    "structural_tag: triggered_tags with stop_after_first and without "
                    "at_least_one must be the last of all"
                )
            return [_LarkRule(f"({behind} | TEXT)")]
        first: list[_Part] = [_LarkRule(f"({at_once})")] if at_once else []
        return [*first, _LarkRule(f"({behind})*"), _Free()]

    def _behind_text(self, tag: TagFormat, triggers: Sequence[str]) -> str:
        trigger = next((one for one in triggers if tag.begin.startswith(one)), None)
        if trigger is None:
            raise InvalidGrammar(f"structural_tag: the begin {tag.begin!r} starts with no trigger")
        rest = msgspec.structs.replace(tag, begin=tag.begin[len(trigger) :])
        parts = [_Free(), _Fixed((trigger,)), *self.parts(rest, is_last=False)]
        return self.joined(parts, is_last=False)

    def separated(self, what: TagsWithSeparator, _: bool) -> list[_Part]:
        tag = self._named(" | ".join(self.whole(one) for one in what.tags))
        more = f"({json.dumps(what.separator)} {tag})*" if what.separator else f"{tag}*"
        several = tag if what.stop_after_first else f"{tag} {more}"
        return [_LarkRule(f"({several})" if what.at_least_one else f"({several})?")]


_WRITERS: dict[type, Callable[..., list[_Part]]] = {
    ConstString: _FormatWriter.const_string,
    JsonSchema: _FormatWriter.json_schema,
    Regex: _FormatWriter.regex,
    AnyText: _FormatWriter.any_text,
    InOrder: _FormatWriter.in_order,
    OneOf: _FormatWriter.one_of,
    Maybe: _FormatWriter.repeated,
    OneOrMore: _FormatWriter.repeated,
    AnyNumber: _FormatWriter.repeated,
    Repeat: _FormatWriter.repeated,
    TagFormat: _FormatWriter.tag,
    TriggeredTags: _FormatWriter.triggered,
    TagsWithSeparator: _FormatWriter.separated,
}
