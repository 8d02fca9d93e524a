"""Arguments between tags: from a schema to the rules of a grammar.

Text is written as it is, so these rules know of it what ``enum`` and ``const`` say and nothing
else; every other value is JSON of its own schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir.grammar.errors import UnsupportedSchema
from kvasir.toolcalls.flat import apart
from kvasir.toolcalls.format import Kind, Parameter
from kvasir.toolcalls.rules import WORD, RuleLines, json_of, regex

_DEFINITIONS = ("$defs", "definitions")
_KNOWN = frozenset(("type", "enum", "const"))
"""Keywords of text that are kept to, or say that it is text."""


class TaggedRules:
    """Writes rules for one tool after the other."""

    def __init__(self, tags: Parameter, rules: RuleLines) -> None:
        self._tags = tags
        self._rules = rules
        self._n = 0
        self.idle: dict[str, str] = {}
        """What is not kept to, in words, and the keyword."""

    def arguments(self, schema: Mapping[str, Any], kinds: Mapping[str, Kind]) -> str:
        """All parameters of a call, in the order of ``schema``, whose references go to its
        definitions. ``kinds``: how they are read. Raises UnsupportedSchema for texts that are read
        as something else."""
        schema = apart(schema)
        required = schema.get("required", ())
        shared = {key: schema[key] for key in _DEFINITIONS if key in schema}
        found = []
        for key, value in schema["properties"].items():
            kind = kinds.get(key, "json")
            rule = self._parameter(key, kind, self._value(key, kind, value, shared))
            found.append(rule if key in required else f"{rule}?")
        return f"({' '.join(found)})" if found else ""

    def anything(self, kinds: Mapping[str, Kind]) -> str:
        """Parameters of any value: those that are known, and behind them any others."""
        found = [
            f"{self._parameter(key, kind, self._value(key, kind, True, {}))}?"
            for key, kind in kinds.items()
        ]
        word, name = self._name(), self._name()
        texts = [key for key, kind in kinds.items() if kind == "text"]
        others = f" & ~/{'|'.join(map(regex, texts))}/" if texts else ""
        self._rules.add(f"{word.upper()}: /{WORD}/{others}")
        tags = self._tags
        begin, middle = map(self._rules.literal, (tags.before, tags.between + tags.as_json))
        value = self._value("", "json", True, {})
        self._rules.add(f"{name}: {begin} {word.upper()} {middle} {value} SP")
        return f"({' '.join(found)} {name}*)"

    def _name(self) -> str:
        self._n += 1
        return f"parameter_{self._n}"

    def _parameter(self, key: str, kind: Kind, value: str) -> str:
        """The rule of one, whose value is the rule ``value``."""
        tags, name = self._tags, self._name()
        said = tags.as_text if kind == "text" else tags.as_json
        begin = self._rules.literal(f"{tags.before}{key}{tags.between}{said}")
        self._rules.add(f"{name}: {begin} {value} SP")
        return name

    def _value(self, key: str, kind: Kind, schema: Any, shared: Mapping[str, Any]) -> str:
        """A value and the tag behind it."""
        after = self._tags.after
        if kind == "json":
            whole = {**schema, **shared} if isinstance(schema, Mapping) else {}
            return f"%json {json_of(whole)} {self._rules.literal(after)}"
        asked = schema if isinstance(schema, Mapping) else {}
        for keyword in (name for name in asked if name not in _KNOWN):
            self.idle[f"'{keyword}' of {key} is not kept to"] = keyword
        words = [asked["const"]] if "const" in asked else asked.get("enum")
        if not words:
            return self._rules.until(f"{self._name()}_text", after)
        if any((word + after).find(after) < len(word) for word in words):
            raise UnsupportedSchema(f"a value of {key} has the tag that ends it", "enum")
        return "(" + " | ".join(self._rules.literal(word + after) for word in words) + ")"
