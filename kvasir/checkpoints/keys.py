"""Typed access to a model's config that names the field when something is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kvasir.core.errors import ModelError

LARGEST = 1e30
Item = TypeVar("Item")
_SHOWN = 6
"""Names that a message lists."""


def listed(names: Sequence[str]) -> str:
    """The first few, and how many there are more."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name[:80] for name in names[:_SHOWN]) + more


class Keys:
    """``config.json`` or GGUF metadata.

    ``prefix`` stands before every field; ``where`` names the file in errors.

    A ``default`` of None means that the field must be there. JSON null counts as missing.
    """

    def __init__(self, config: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._config, self._where, self._prefix = config, where, prefix
        self._asked: set[str] = set()

    def raw(self, name: str) -> Any:
        self._asked.add(name)
        return self._config.get(self._prefix + name)

    def unread(self, harmless: Collection[str]) -> tuple[str, ...]:
        """Fields that nobody asked for, but ``harmless`` ones and those that hold nothing."""
        known = self._asked.union(harmless)
        mine = sorted(x for x in self._config if x.startswith(self._prefix))
        # no other value is looked at: vocabularies take 0.1 s to decode
        names = [x for x in mine if x.removeprefix(self._prefix) not in known]
        return tuple(x.removeprefix(self._prefix) for x in names if self._config[x] is not None)

    def integer(
        self, name: str, default: int | None = None, least: int = 1, most: int = 1 << 24
    ) -> int:
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(name, value, "a whole number")
        if value < least:
            raise self.error(name, value, f"at least {least}")
        if value > most:
            raise self.error(name, value, f"at most {most}")
        return value

    def number(
        self,
        name: str,
        default: float | None = None,
        least: float = 0.0,
        most: float = LARGEST,
    ) -> float:
        value = self._get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(name, value, "a number")
        if not least <= value <= most:
            raise self.error(name, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def word(self, name: str, allowed: Iterable[str], default: str | None = None) -> str:
        value = self._get(name, default)
        allowed = tuple(allowed)
        if not isinstance(value, str) or value not in allowed:
            raise self.error(name, value, f"one of {', '.join(allowed)}")
        return value

    def items(self, name: str, allowed: Iterable[Item], length: int) -> tuple[Item, ...]:
        value, allowed = self._get(name, None), tuple(allowed)
        fits = (
            isinstance(value, list | tuple)
            and len(value) == length
            and all(item in allowed for item in value)
        )
        if not fits:
            words = ", ".join(map(str, allowed))
            raise self.error(name, value, f"{length} entries, each one of {words}")
        return tuple(value)

    def integers(
        self, name: str, length: int, least: int = 1, most: int = 1 << 24
    ) -> tuple[int, ...]:
        value = self._get(name, None)
        fits = isinstance(value, list | tuple) and len(value) == length
        if not fits or not all(type(x) is int and least <= x <= most for x in value):
            raise self.error(name, value, f"{length} whole numbers from {least} to {most}")
        return tuple(value)

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """Positive ones, by which something may be divided."""
        value, kinds = self._get(name, None), (int, float)
        fits = isinstance(value, list) and len(value) == length
        if not fits or not all(type(x) in kinds and 1 / LARGEST < x <= LARGEST for x in value):
            raise self.error(name, value, f"{length} positive numbers")
        return tuple(float(x) for x in value)

    def table(self, name: str) -> Keys | None:
        """A nested object, or None when it is missing."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, value, "an object")
        return Keys(value, f"{self._where}, {name}")

    def flattened(self, names: Mapping[str, str]) -> Keys:
        """With fields of nested objects as fields of other names. ``names``: by "object.field", as
        others are called that it lacks."""
        if not names:
            return self
        found = dict(self._config)
        for table in {name.partition(".")[0] for name in names}:
            nested = self.table(table)
            said = {} if nested is None else found.pop(table)
            found |= {names.get(f"{table}.{key}", f"{table}.{key}"): x for key, x in said.items()}
        return Keys(found, self._where, self._prefix)

    def with_field(self, name: str, value: object) -> Keys:
        """The same fields and one more, or another in its place."""
        return Keys({**self._config, name: value}, self._where, self._prefix)

    def has(self, name: str) -> bool:
        return self.raw(name) is not None

    def is_null(self, name: str) -> bool:
        """Whether the field is written as null."""
        return self._prefix + name in self._config and self.raw(name) is None

    def refuse(self, name: str, *harmless: Any) -> None:
        """Fails unless the field is missing or has a value that changes nothing."""
        value = self.raw(name)
        if value is not None and value not in harmless:
            raise self.error(name, value, "a model without it: this feature is not supported")

    def error(self, name: str, value: Any, expected: str) -> ModelError:
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
        return ModelError(f"{self._where}: {self._prefix}{name} is {shown}, expected {expected}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.raw(name)
        if value is None and default is None:
            raise ModelError(f"{self._where}: {self._prefix}{name} is missing")
        return default if value is None else value
