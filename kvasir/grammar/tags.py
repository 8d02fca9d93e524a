"""Structural tags: free text, and after each trigger a structure that is kept to.

The form is that of vLLM's and SGLang's ``structural_tag``: structures with ``begin``, ``schema``
and ``end``, and triggers with which their begins start; or a ``format``, which ``tag_formats.py``
reads.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from kvasir.grammar.constraint import (
    Constraint,
    check_size,
    dumped,
    guidance,
    lark_grammar,
)
from kvasir.grammar.errors import InvalidGrammar
from kvasir.grammar.limits import LIMITS, GrammarLimits
from kvasir.grammar.schema import SearchEfforts, prepare
from kvasir.grammar.tag_formats import format_grammar

_MAX_TAGS = msgspec.Meta(min_length=1, max_length=128)


class Structure(msgspec.Struct, frozen=True):
    begin: str
    schema: dict[str, Any] | bool = True
    end: str = ""


class StructuralTag(msgspec.Struct, frozen=True):
    structures: Annotated[list[Structure], _MAX_TAGS]
    triggers: Annotated[list[str], _MAX_TAGS]


def tag_grammar(asked: object, limits: GrammarLimits = LIMITS) -> Constraint:
    """Raises InvalidGrammar and UnsupportedSchema."""
    check_size(dumped(asked), "structural_tag", limits)
    if isinstance(asked, dict) and "format" in asked:
        return format_grammar(asked, limits)
    try:
        tag = msgspec.convert(asked, StructuralTag)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InvalidGrammar(f"structural_tag: {error}") from None
    rules: list[str] = []
    warnings: list[str] = []
    efforts = SearchEfforts()
    for number, structure in enumerate(tag.structures):
        begin = structure.begin
        trigger = next((trigger for trigger in tag.triggers if begin.startswith(trigger)), "")
        if not trigger:
            raise InvalidGrammar(f"the begin of structures[{number}] starts with no trigger")
        prepared = prepare(structure.schema, limits=limits, efforts=efforts)
        warnings += prepared.warnings
        whole = {**prepared.schema, "x-guidance": guidance(prepared.schema)}
        rules += [
            f"tag_{number}_head[lazy]: TEXT {json.dumps(trigger)}",
            f"tag_{number}: tag_{number}_head {_literal(begin[len(trigger) :])} "
            f"%json {json.dumps(whole)} {_literal(structure.end)}",
        ]
    names = " | ".join(f"tag_{number}" for number in range(len(tag.structures)))
    head = ["%llguidance {}", f"start: ({names})* rest", "rest: TEXT", r"TEXT: /(.|\n)*/"]
    return Constraint(lark_grammar("\n".join((*head, *rules)), limits).text, tuple(warnings))


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""
