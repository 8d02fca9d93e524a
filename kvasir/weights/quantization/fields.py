"""Fields of a ``quantization_config`` within bounds; a refusal names field, value and remedy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from kvasir.core.errors import ModelError

MAX_GROUP = 1 << 20
"""Elements that share a scale: more than any row has."""
MAX_NAMES = 1 << 16
"""Modules that a list names."""
UNQUANTIZED = "use the model's unquantized safetensors, or a GGUF file"
Value = TypeVar("Value", str, int, bool)


class QuantFields:
    """The object at ``where`` ("…/config.json: quantization_config")."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def raw(self, *names: str) -> object:
        """Of the first of ``names`` that is there; null counts as missing."""
        return next((self.values[x] for x in names if self.values.get(x) is not None), None)

    def one_of(
        self, allowed: Collection[Value], *names: str, default: Value | None = None
    ) -> Value:
        """The value of the first of ``names`` that is there."""
        value = self.raw(*names)
        if value is None and default is not None:
            return default
        for each in allowed:
            if type(value) is type(each) and value == each:
                return each
        raise self.error(names[0], value, f"one of {', '.join(map(str, allowed))}")

    def flag(self, name: str, default: bool) -> bool:
        return self.one_of((True, False), name, default=default)

    def group(self, *names: str, default: int | None = None) -> int:
        """Elements that share a scale; 0: the whole row, which files write as -1."""
        value = self.raw(*names)
        value = default if value is None else value
        if type(value) is int and value == -1:
            return 0
        if type(value) is not int or not 32 <= value <= MAX_GROUP or value % 32:
            raise self.error(names[0], value, "-1 or a multiple of 32")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of names; empty when it is missing."""
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
            raise self.error(name, value, "a list of names")
        if len(value) > MAX_NAMES:
            raise self.error(name, f"{len(value)} names", f"at most {MAX_NAMES}")
        return tuple(value)

    def table(self, name: str) -> QuantFields | None:
        """A nested object; None when it is missing."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, value, "an object")
        return QuantFields(value, f"{self.where}, {name}")

    def refuse(self, name: str, why: str, *harmless: object) -> None:
        """Unless the field is missing, empty or has a ``harmless`` value."""
        value = self.raw(name)
        if value is not None and value not in (False, {}, [], "", *harmless):
            raise self.error(name, value, f"a checkpoint without it, as {why}: {UNQUANTIZED}")

    def error(self, name: str, value: object, expected: str) -> ModelError:
        return ModelError(
            f"{self.where}: {name} is {repr(value)[:80]}, expected {expected}",
            code="unsupported_format",
        )
