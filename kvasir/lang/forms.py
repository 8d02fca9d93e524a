"""What the text of a call must keep to, and the value that it then stands for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kvasir.validation.sampling import StructuredOutputs


@runtime_checkable
class SchemaType(Protocol):
    """What pydantic's models are."""

    def model_json_schema(self) -> dict[str, Any]: ...

    def model_validate_json(self, text: str) -> object: ...


@dataclass(frozen=True, slots=True)
class AnswerForm:
    outputs: StructuredOutputs | None = None
    """None: any text."""
    read: Callable[[str], object] = str
    """The value of a whole text."""


ANY_TEXT = AnswerForm()


_TYPES: Mapping[type, AnswerForm] = {
    int: AnswerForm(StructuredOutputs(regex=r"-?(0|[1-9][0-9]{0,17})"), int),
    float: AnswerForm(StructuredOutputs(regex=r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?"), float),
    bool: AnswerForm(StructuredOutputs(regex="True|False"), "True".__eq__),
    str: ANY_TEXT,
}
"""Bounded: a number has an end that the model need not find."""


def form_of(
    *, regex: str | None, json_schema: object, grammar: str | None, dtype: object
) -> AnswerForm:
    """Raises ValueError for two of them, TypeError for a type that has no form."""
    given = {
        name: value
        for name, value in (
            ("regex", regex),
            ("json_schema", json_schema),
            ("grammar", grammar),
            ("dtype", dtype),
        )
        if value is not None
    }
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} exclude each other")
    if regex is not None:
        return AnswerForm(StructuredOutputs(regex=regex))
    if grammar is not None:
        return AnswerForm(StructuredOutputs(grammar=grammar))
    if isinstance(dtype, type) and dtype in _TYPES:
        return _TYPES[dtype]
    if dtype is not None and not isinstance(dtype, SchemaType):
        raise TypeError(f"dtype is {dtype!r}: use int, float, bool, str or a pydantic type")
    return _schema_form(json_schema if dtype is None else dtype)


def _schema_form(schema: object) -> AnswerForm:
    if schema is None:
        return ANY_TEXT
    if isinstance(schema, SchemaType):
        return AnswerForm(
            StructuredOutputs(json=schema.model_json_schema()), schema.model_validate_json
        )
    if not isinstance(schema, Mapping | str | bool):
        raise TypeError(
            f"json_schema is a {type(schema).__name__}: use a schema, its text or a pydantic type"
        )
    value = dict(schema) if isinstance(schema, Mapping) else schema
    return AnswerForm(StructuredOutputs(json=value), json.loads)
