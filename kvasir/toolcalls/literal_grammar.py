"""Arguments in words other than JSON's: from a schema to the rules of a grammar.

These rules know types, properties, required ones, items, enum, const and choices between schemas.
What else a schema asks for is not kept to, and named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvasir.grammar.errors import UnsupportedSchema
from kvasir.toolcalls.format import Kind, Literals
from kvasir.toolcalls.rules import WORD, RuleLines

MAX_DEPTH = 16
_WORD = re.compile(WORD)
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_KNOWN = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf",
    "oneOf", "title", "description", "default", "examples", "nullable", "deprecated", "$schema",
    "$defs", "definitions", "$id", "$comment", "readOnly", "writeOnly", "strict",
}  # fmt: skip
_INTEGER = r"/-?(0|[1-9][0-9]{0,17})/"
_NUMBER = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?/"


class LiteralRules:
    """Writes rules for one tool after the other."""

    def __init__(self, form: Literals, rules: RuleLines) -> None:
        self._form = form
        self._rules = rules
        self._n = 0
        self._has_any = False
        self.idle: dict[str, str] = {}
        """What is not kept to, in words, and the keyword."""
        self._text = self._add_text()

    def arguments(self, schema: Mapping[str, Any], kinds: Mapping[str, Kind]) -> str:
        """Rule of all pairs of a call. Raises UnsupportedSchema for texts that are read as
        something else."""
        return f"SP {self._members(schema, self._form.assign, 0, is_outer=True)}"

    def anything(self, kinds: Mapping[str, Kind]) -> str:
        """Pairs of any key, those of ``kinds`` among them, and any value."""
        odd = (self._rules.literal(key) for key in kinds if not _WORD.fullmatch(key))
        keys = " | ".join((f"/{WORD}/", *odd))
        return f"SP {self._pairs(f'({keys})', self._form.assign)}"

    def _add_text(self) -> str:
        quote = self._form.quotes[0]
        if not self._form.has_escapes:
            self._rules.until("text_rest", quote)
            self._rules.add(f"text: {self._rules.literal(quote)} text_rest")
            return "text"
        escape = r"""\\[nrt'"\\]"""
        kinds = (rf"/{q}([^{q}\\\x00-\x1f]|{escape})*{q}/" for q in self._form.quotes)
        self._rules.add(f"text: {' | '.join(kinds)}")
        return "text"

    def _name(self) -> str:
        self._n += 1
        return f"value_{self._n}"

    def _value(self, schema: Any, depth: int) -> str:
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return self._any()
        for key in (key for key in schema if key not in _KNOWN):
            self.idle[not_kept(key)] = key
        words = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(words, list) and words:
            return "(" + " | ".join(self._spelled(word) for word in words) + ")"
        either = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(either, list) and either:
            return "(" + " | ".join(self._value(one, depth + 1) for one in either) + ")"
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list) or not all(kind in _TYPES for kind in kinds) or not kinds:
            return self._any()
        if schema.get("nullable") is True:
            kinds = [*kinds, "null"]
        return "(" + " | ".join(self._of_kind(kind, schema, depth) for kind in kinds) + ")"

    def _of_kind(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        true, false, null = (json.dumps(word) for word in self._form.words)
        if kind == "array":
            item = self._value(schema.get("items"), depth + 1)
            return f'"[" SP ({item} SP ("," SP {item} SP)*)? "]"'
        if kind == "object":
            return f'"{{" SP {self._members(schema, ":", depth + 1, is_outer=False)} "}}"'
        plain = {"string": self._text, "integer": _INTEGER, "number": _NUMBER, "null": null}
        return plain.get(kind) or f"({true} | {false})"

    def _members(
        self, schema: Mapping[str, Any], assign: str, depth: int, *, is_outer: bool
    ) -> str:
        """Pairs in the order of the properties; a rule for each place, with something before it
        and with nothing."""
        found = schema.get("properties")
        properties = found if isinstance(found, Mapping) else {}
        if not properties and not is_outer and schema.get("additionalProperties") is not False:
            return self._free_members()
        required = schema.get("required", ())
        keys = sorted(properties) if self._form.is_sorted else list(properties)
        name, sign = self._name(), self._rules.literal(assign)
        for i, key in enumerate(keys):
            value = self._value(properties[key], depth)
            spelled = self._key(key, is_outer)
            self._rules.add(f"{name}_{i}_p: {spelled} SP {sign} SP {value} SP")
            for state, comma in (("n", ""), ("y", '"," SP ')):
                rest = f" | {name}_{i + 1}_{state}" if key not in required else ""
                self._rules.add(f"{name}_{i}_{state}: {comma}{name}_{i}_p {name}_{i + 1}_y{rest}")
        for state in "ny":
            self._rules.add(f'{name}_{len(keys)}_{state}: ""')
        return f"{name}_0_n"

    def _key(self, key: str, is_outer: bool) -> str:
        return self._rules.literal(key if is_outer else key_of(key, self._form))

    def _free_members(self) -> str:
        bare = f"/{WORD}/ | " if self._form.has_bare_keys else ""
        return self._pairs(f"({bare}{self._text})", ":")

    def _pairs(self, key: str, assign: str) -> str:
        """Any number of them, with any value."""
        pair = f"{key} SP {self._rules.literal(assign)} SP {self._any()} SP"
        return f'({pair} ("," SP {pair})*)?'

    def _any(self) -> str:
        if not self._has_any:
            self._has_any = True
            kinds = (self._of_kind(kind, {}, 0) for kind in _TYPES)
            self._rules.add(f"any: {' | '.join(kinds)}")
        return "any"

    def _spelled(self, value: Any) -> str:
        quote = self._form.quotes[0]
        if not self._form.has_escapes and any(quote in text for text in _texts(value)):
            raise UnsupportedSchema("a value has the quotes that it is written between", "enum")
        return self._rules.literal(spelled(value, self._form))


def not_kept(keyword: str) -> str:
    return f"'{keyword}' is not kept to in arguments of this model's form"


def spelled(value: Any, form: Literals) -> str:
    """``value`` in the language of ``form``."""
    if isinstance(value, str):
        quote = form.quotes[0]
        return quote + (_escaped(value, quote) if form.has_escapes else value) + quote
    if value is None or isinstance(value, bool):
        return form.words[2 if value is None else 0 if value else 1]
    if isinstance(value, Mapping):
        pairs = (f"{key_of(key, form)}:{spelled(item, form)}" for key, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(spelled(item, form) for item in value) + "]"
    return json.dumps(value)


def key_of(key: str, form: Literals) -> str:
    """``key`` of a value inside of arguments: with quotes where it is no word."""
    return key if form.has_bare_keys and _WORD.fullmatch(key) else spelled(key, form)


def _texts(value: Any) -> Iterator[str]:
    """All in ``value``, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _escaped(text: str, quote: str) -> str:
    text = text.replace("\\", "\\\\").replace(quote, "\\" + quote)
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
