"""The fields in which clients of different engines ask for the form of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from kvasir.core.errors import RequestError
from kvasir.serve.protocol.parse import converted
from kvasir.validation.sampling import SamplingParams, SharedParams, StructuredOutputs


class StructuredFields(SharedParams, frozen=True, kw_only=True):
    """OpenAI's ``response_format``, vLLM's ``structured_outputs`` and ``guided_…``, SGLang's
    ``regex``, ``ebnf`` and ``json_schema``, llama.cpp's ``grammar`` and ``json_schema``."""

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None


_PLAIN = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}
"""Fields whose value is that of one in ``StructuredOutputs``."""
_IDLE = {"type": "text"}


def structured_of(fields: StructuredFields, *, strict: bool = False) -> StructuredOutputs | None:
    """None where nothing is asked for. Raises RequestError (400) for two constraints at once."""
    names = (*_PLAIN, "response_format", "structured_outputs")
    given = [name for name in names if not _is_idle(name, getattr(fields, name))]
    if len(given) > 1:
        raise RequestError(
            f"{given[0]} and {given[1]} ask for the form of the answer: send one of them",
            param=given[1],
        )
    blanks = fields.guided_whitespace_pattern
    if blanks is not None and given != ["guided_json"]:
        raise RequestError(
            "guided_whitespace_pattern needs guided_json", param="guided_whitespace_pattern"
        )
    if not given:
        return None
    name = given[0]
    value = getattr(fields, name)
    if name == "structured_outputs":
        return converted(StructuredOutputs, value, name)
    if name == "response_format":
        if "value" in value:
            return tgi_grammar(value, name)
        return format_of(value, name, FORMATS)
    return StructuredOutputs(**{_PLAIN[name]: value}, whitespace_pattern=blanks, strict=strict)


def _is_idle(name: str, value: object) -> bool:
    """Whether nothing is asked for; an empty schema asks for JSON."""
    return value is None or (name not in _PLAIN and value in (_IDLE, {}))


FORMATS = ("json_object", "json_schema", "structural_tag")


def format_of(
    value: Mapping[str, Any], where: str, kinds: tuple[str, ...] = FORMATS[:2]
) -> StructuredOutputs | None:
    """Of a mapping with a type: text, or one of ``kinds``. A schema stands in it, or in its
    ``json_schema``; a json_object may have one too, as llama-server's. Raises RequestError (400),
    which names ``where``."""
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "structural_tag" and kind in kinds:
        return StructuredOutputs(structural_tag=dict(value))
    if kind not in kinds:
        raise RequestError(
            f"{where}.type must be {', '.join(('text', *kinds[:-1]))} or {kinds[-1]}",
            param=f"{where}.type",
        )
    if kind == "json_object" and value.get("schema") is None:
        return StructuredOutputs(json_object=True)
    name = where if kinds != FORMATS and "json_schema" not in value else f"{where}.json_schema"
    said = value.get("json_schema", value)
    schema = said.get("schema") if isinstance(said, Mapping) else None
    if schema is None or not isinstance(schema, dict | bool):
        raise RequestError(f"{name}.schema is missing: it is a JSON Schema", param=name)
    return StructuredOutputs(json=schema, strict=said.get("strict") is True)


def tgi_grammar(value: Mapping[str, Any], where: str) -> StructuredOutputs:
    """Text Generation Inference's: a type, and a value. Raises RequestError (400)."""
    kind, said = value.get("type"), value.get("value")
    if kind == "regex" and isinstance(said, str):
        return StructuredOutputs(regex=said)
    if kind in ("json", "json_object") and isinstance(said, dict | str):
        return StructuredOutputs(json=said)
    if kind == "json_schema" and isinstance(said, Mapping):
        found = format_of({"type": kind, "json_schema": said}, where)
        if found is not None:
            return found
    raise RequestError(
        f"{where} needs a type, json, regex or json_schema, and a value of that type", param=where
    )


def with_structure(
    params: SamplingParams, structure: StructuredOutputs | None, name: str
) -> SamplingParams:
    """``params`` with what the field ``name`` asks for. Raises RequestError (400) where others ask
    too."""
    if structure is None:
        return params
    if params.structured_outputs is not None:
        raise RequestError(
            f"{name} and another field ask for the form of the answer: send one of them",
            param=name,
        )
    return structs.replace(params, structured_outputs=structure)
