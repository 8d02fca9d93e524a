"""From a user's JSON Schema to one that the grammar library keeps to exactly.

JSON Schema drafts 4 to 2020-12 (json-schema.org). Keywords that say nothing are dropped, formats
that nobody checks become annotations, what the library lacks is said with what it has
(``rewrites``), and what remains is refused with keyword and JSON pointer.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvasir.grammar.bounds import MAX_LOOKS, forgotten
from kvasir.grammar.disjoint import MAX_COMPARED, Schema, SchemaSearch, SearchEffort
from kvasir.grammar.errors import InvalidGrammar, Path, pointer, unsupported
from kvasir.grammar.limits import LIMITS, GrammarLimits
from kvasir.grammar.patterns import EVERY, translated
from kvasir.grammar.references import References
from kvasir.grammar.rewrites import SchemaPlace, rewrite
from kvasir.grammar.widths import MAX_OPTIONAL, Widths
from kvasir.validation.warn import escaped

MAX_SCHEMAS = 20_000
MAX_WARNINGS = 16
MAX_UNKNOWN = 1_000
"""Keywords that are none: each is compared with all there are."""

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""That the library asserts; other formats are annotations, as the standard has them all."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    *("items", "additionalItems", "additionalProperties", "not", "if", "then", "else"),
    *("contains", "propertyNames", "unevaluatedProperties", "unevaluatedItems"),
)
_PLAIN = (
    *("$ref", "$anchor", "$id", "id", "$schema", "type", "enum", "const", "format", "pattern"),
    *("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
    *("required", "dependencies", "dependentRequired", "minContains", "maxContains"),
    *("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor"),
)
_SILENT = frozenset(
    (
        *("title", "description", "default", "examples", "example", "$comment", "deprecated"),
        *("readOnly", "writeOnly", "$vocabulary", "contentEncoding", "contentMediaType"),
        "contentSchema",
    )
)
"""Keywords that describe and ask for nothing."""
KEYWORDS = frozenset((*_MAPS, *_LISTS, *_SINGLE, *_PLAIN))
_IDLE = {"minLength": 0, "minItems": 0, "minProperties": 0, "required": []}
_KINDS: dict[str, type[dict[str, Any]] | type[list[Any]] | type[str]] = {
    **dict.fromkeys(("$defs", "definitions", "dependencies"), dict),
    **dict.fromkeys(("dependentRequired", "dependentSchemas"), dict),
    **dict.fromkeys(("properties", "patternProperties"), dict),
    "pattern": str,
    **dict.fromkeys(_LISTS, list),
}
"""Of values that are gone through."""
_NEEDS = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
"""Keywords that say nothing without another."""
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NAMES = ("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
"""Of the document and its parts: what is made is always draft 2020-12, and all in one piece."""
_OLD = re.compile(r"draft-0[3-7]/")
"""Drafts in which nothing beside a $ref counts."""


class PreparedSchema(msgspec.Struct, frozen=True):
    schema: dict[str, Any]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchEfforts:
    """Of a request: a search of its own for each of a thousand schemas would take a minute."""

    compared: SearchEffort = field(default_factory=lambda: SearchEffort(MAX_COMPARED))
    looks: SearchEffort = field(default_factory=lambda: SearchEffort(MAX_LOOKS))


def prepare(
    schema: Schema,
    *,
    strict: bool = False,
    is_closed: bool = False,
    limits: GrammarLimits = LIMITS,
    efforts: SearchEfforts | None = None,
) -> PreparedSchema:
    """Raises UnsupportedSchema and InvalidGrammar; with ``strict`` also on a keyword that looks
    misspelled, which otherwise is a warning. ``is_closed``: objects have no properties but those
    that their schemas name, whether these say so or not. ``efforts``: those of all schemas of a
    request; default: of one."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidGrammar("a schema is a JSON object")
    if _OLD.search(str(schema.get("$schema", ""))):
        schema = _alone(schema, limits.depth)
    references, own = References(schema), efforts or SearchEfforts()
    walk = _Walk(
        references,
        SchemaSearch(references.find_made, own.compared),
        SchemaSearch(references.find, own.looks),
        Widths(references.find),
        limits,
        strict,
        is_closed,
    )
    made = walk.document(schema)
    made = {"anyOf": []} if made is False else made
    return PreparedSchema({} if made is True else made, walk.told())


@dataclass(slots=True)
class _Walk:
    references: References
    search: SchemaSearch
    bounds: SchemaSearch
    widths: Widths
    limits: GrammarLimits
    strict: bool
    is_closed: bool = False
    n_schemas: int = 0
    n_values: int = 0
    unknown: dict[str, str] = field(default_factory=dict)
    """What is no keyword, and which one it looks like."""
    warnings: list[str] = field(default_factory=list)
    n_more: int = 0
    """Warnings that are not told one by one."""

    def told(self) -> tuple[str, ...]:
        more = (f"and {self.n_more} more of the schema",) if self.n_more else ()
        return (*self.warnings, *more)

    def warn(self, text: str) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)
        else:
            self.n_more += 1

    def document(self, root: dict[str, Any]) -> Schema:
        made = self.schema(root, (), 0)
        waiting = self.references.waiting
        while waiting and isinstance(made, dict):
            name, schema, path = waiting.pop()
            made.setdefault("$defs", {})[name] = self.schema(schema, path, 1)
        return made

    def schema(self, schema: Schema, path: Path, depth: int) -> Schema:
        self.n_schemas += 1
        if depth > self.limits.depth:
            raise _too_deep(self.limits.depth)
        if self.n_schemas > MAX_SCHEMAS:
            raise InvalidGrammar(f"the schema has more than {MAX_SCHEMAS} subschemas")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise InvalidGrammar(f"what stands at {pointer(path)} is no schema")
        self._check_width(schema, path)
        schema = _in_new_words(schema)
        _check_kinds(schema, path)
        kept = {key: value for key, value in schema.items() if self._counts(key, value, path)}
        if self.is_closed and "properties" in kept:
            kept.setdefault("additionalProperties", False)
        made = {key: self._value(key, value, (*path, key), depth) for key, value in kept.items()}
        place = SchemaPlace(path, self.search)
        if keyword := forgotten(schema, self.bounds):
            raise place.refuse(keyword, "the other is nearer than 1: move or include it")
        return rewrite(made, place)

    def _check_width(self, schema: dict[str, Any], path: Path) -> None:
        n = self.widths.of(schema)
        if n > MAX_OPTIONAL:
            why = f"{n} optional ones may come next, {MAX_OPTIONAL} at most: require or nest some"
            raise unsupported("properties", (*path, "properties"), why)

    def _counts(self, key: str, value: object, path: Path) -> bool:
        """Whether the keyword asks for something; warns of those that do not and look as if."""
        if key in _SILENT or key in _NAMES or (key in _IDLE and _IDLE[key] == value):
            return False
        if key == "pattern" and isinstance(value, str) and value in EVERY:
            return False
        if key == "format" and not (isinstance(value, str) and value in FORMATS):
            self.warn(f"the format '{escaped(str(value))}' at {pointer(path)} is not checked")
            return False
        if key in KEYWORDS:
            return True
        near = self._meant(key)
        if near and self.strict:
            raise unsupported(key, (*path, key), f"did you mean '{near}'?")
        if near:
            where = pointer((*path, key))
            self.warn(f"{where} is no keyword and was ignored: did you mean '{near}'?")
        return False

    def _meant(self, key: str) -> str:
        """The keyword that ``key`` looks like."""
        if key not in self.unknown:
            if len(self.unknown) == MAX_UNKNOWN:
                raise InvalidGrammar(f"the schema has more than {MAX_UNKNOWN} unknown keywords")
            near = difflib.get_close_matches(key, KEYWORDS, n=1, cutoff=0.8)
            self.unknown[key] = near[0] if near else ""
        return self.unknown[key]

    def _value(self, key: str, value: Any, path: Path, depth: int) -> Any:
        """A keyword's value with its subschemas prepared."""
        if key in _MAPS and isinstance(value, dict):
            spelled = translated if key == "patternProperties" else str
            return {
                spelled(name): self.schema(s, (*path, name), depth + 1) for name, s in value.items()
            }
        if key == "dependencies" and isinstance(value, dict):
            return {
                name: s if isinstance(s, list) else self.schema(s, (*path, name), depth + 1)
                for name, s in value.items()
            }
        if (key in _LISTS or key == "items") and isinstance(value, list):
            return [self.schema(s, (*path, i), depth + 1) for i, s in enumerate(value)]
        if key in _SINGLE:
            return self.schema(value, path, depth + 1)
        if key == "enum" and isinstance(value, list):
            self.n_values += len(value)
            most = self.limits.n_values
            if self.n_values > most:
                raise InvalidGrammar(f"enum: the schema lists more than {most} values")
        if key == "$ref":
            return self.references.renamed(value, path)
        return translated(value) if key == "pattern" and isinstance(value, str) else value


def _check_kinds(schema: dict[str, Any], path: Path) -> None:
    """Raises InvalidGrammar for values of keywords that nobody could read."""
    odd = (key for key, kind in _KINDS.items() if not isinstance(schema.get(key, kind()), kind))
    wrong = next(odd, "")
    kinds = schema.get("type", [])
    if not isinstance(kinds, str) and not all(isinstance(x, str) for x in _listed(kinds)):
        wrong = "type"
    if wrong:
        raise InvalidGrammar(f"{pointer((*path, wrong))} is not what its keyword takes")


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _too_deep(most: int) -> InvalidGrammar:
    return InvalidGrammar(f"the schema is nested too deeply, {most} at most")


def _alone(value: Any, most: int, depth: int = 0) -> Any:
    """Schemas of drafts in which nothing counts beside a $ref, without what stands there."""
    if depth > 2 * most:
        raise _too_deep(most)
    if isinstance(value, list):
        return [_alone(item, most, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("$ref"), str):
        value = {key: value[key] for key in ("$ref", *_MAPS[2:4]) if key in value}
    return {k: _alone_in(k, v, most, depth + 1) for k, v in value.items()}


def _alone_in(key: str, value: Any, most: int, depth: int) -> Any:
    """Of a keyword's value: names of properties and definitions are no keywords."""
    if key in ("const", "enum", "default", "examples"):
        return value
    if key in (*_MAPS, "dependencies") and isinstance(value, dict):
        return {name: _alone(part, most, depth + 1) for name, part in value.items()}
    return _alone(value, most, depth)


def _in_new_words(schema: dict[str, Any]) -> dict[str, Any]:
    """What older drafts spell otherwise, and sizes that are written as 2.0."""
    found = {key: v for key, v in schema.items() if _NEEDS.get(key, key) in schema}
    for key in _SIZES:
        if isinstance(found.get(key), float) and found[key].is_integer():
            found[key] = int(found[key])
    if not isinstance(found.get("minProperties", 0), int):
        raise InvalidGrammar("minProperties must be a number")
    for opened, closed in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(found.get(opened), bool):
            is_open = found.pop(opened)
            if is_open and closed in found:
                found[opened] = found.pop(closed)
    return found
