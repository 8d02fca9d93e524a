"""Typed look-ups in model metadata; every failure names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir.core.errors import ModelError


def get_int(config: Mapping[str, object], key: str, default: int | None = None) -> int | None:
    """An integer, or ``default`` when the key is absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if type(value) is not int:
        raise _wrong(key, value, "an integer")
    return value


def get_bool(config: Mapping[str, object], key: str, default: bool | None = None) -> bool | None:
    """True or False, or ``default`` when the key is absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if type(value) is not bool:
        raise _wrong(key, value, "true or false")
    return value


def get_str(config: Mapping[str, object], key: str, default: str | None = None) -> str | None:
    """A string, or ``default`` when the key is absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if type(value) is not str:
        raise _wrong(key, value, "a string")
    return value


def get_tuple(config: Mapping[str, object], key: str, kind: type[Any]) -> tuple[Any, ...]:
    """All elements of an array of ``kind``; empty when the key is absent or null."""
    value = config.get(key)
    if value is None:
        return ()
    if not isinstance(value, tuple | list) or not set(map(type, value)) <= {kind}:
        raise _wrong(key, value, f"an array of {kind.__name__}")
    return tuple(value)


def _wrong(key: str, value: object, expected: str) -> ModelError:
    return ModelError(
        f"'{key}' is {str(value)[:80]!r}, expected {expected}: the model's metadata is corrupt"
    )
