"""From what a caller asks of an answer's form to its grammar."""

from __future__ import annotations

import json
from typing import Any

from kvasir.core.errors import RequestError
from kvasir.grammar.constraint import (
    SPACES,
    Constraint,
    choice_grammar,
    object_grammar,
    regex_grammar,
    schema_grammar,
    text_grammar,
)
from kvasir.grammar.errors import InvalidGrammar
from kvasir.grammar.limits import LIMITS, GrammarLimits
from kvasir.grammar.tags import tag_grammar
from kvasir.validation.sampling import StructuredOutputs

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def grammar_of(asked: StructuredOutputs, limits: GrammarLimits = LIMITS) -> Constraint:
    """Raises RequestError (400): InvalidGrammar, UnsupportedSchema, and where ``asked`` says none
    or two things at once."""
    given = [name for name in KINDS if getattr(asked, name) not in (None, False)]
    if asked.json is False:
        given.append("json")
    if len(given) != 1:
        said = " and ".join(given) or "nothing"
        raise RequestError(
            f"structured_outputs asks for {said}: say one of {', '.join(KINDS)}",
            param="structured_outputs",
        )
    if given[0] not in ("json", "json_object") and _has_json_options(asked):
        raise RequestError(
            f"structured_outputs: white space and properties are those of json, not of {given[0]}",
            param="structured_outputs",
        )
    return _make(given[0], asked, limits)


def _has_json_options(asked: StructuredOutputs) -> bool:
    return bool(
        asked.whitespace_pattern
        or asked.disable_any_whitespace
        or asked.disable_additional_properties
    )


def _make(kind: str, asked: StructuredOutputs, limits: GrammarLimits) -> Constraint:
    if kind == "regex":
        return regex_grammar(asked.regex or "", limits)
    if kind == "choice":
        return choice_grammar(asked.choice or [], limits)
    if kind == "grammar":
        return text_grammar(asked.grammar or "", limits)
    if kind == "structural_tag":
        return tag_grammar(_loaded(asked.structural_tag, "structural_tag"), limits)
    if asked.disable_any_whitespace and asked.whitespace_pattern:
        raise RequestError(
            "structured_outputs: whitespace_pattern and disable_any_whitespace exclude each other",
            param="structured_outputs",
        )
    spaces = None if asked.disable_any_whitespace else asked.whitespace_pattern or SPACES
    if kind == "json_object":
        return object_grammar(spaces)
    return schema_grammar(
        _loaded(asked.json, "the schema"),
        strict=asked.strict,
        spaces=spaces,
        is_closed=asked.disable_additional_properties,
        limits=limits,
    )


def _loaded(value: Any, what: str) -> Any:
    """``value``, which may be written as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except RecursionError:
        raise InvalidGrammar(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise InvalidGrammar(f"{what} is not JSON: {error}") from None
