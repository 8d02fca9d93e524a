"""The fields of a family as one model file has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from kvasir.checkpoints.keys import LARGEST, Item, Keys
from kvasir.core.errors import ModelError
from kvasir.models.family import NEUTRAL, Default, Family
from kvasir.models.spec import MAX_LAYERS


class Fields(msgspec.Struct, frozen=True):
    """Errors name the file's own key."""

    family: Family
    keys: Keys
    kind: str
    """Of the file: "hf" or "gguf"."""

    def has(self, name: str) -> bool:
        """Whether the family has a field of this name."""
        return name in self.family.fields

    def key(self, name: str) -> str:
        """Empty where files of this kind, or of the family, do not say it."""
        return self._known(name)[0] if self.has(name) else ""

    def says(self, name: str) -> bool:
        """Whether the file does."""
        return self._says(self.key(name))

    def raw(self, name: str) -> Any:
        """None where the file does not say it."""
        key = self.key(name)
        return self.keys.raw(key) if key else None

    def integer(self, name: str, least: int = 1, most: int = 1 << 24) -> int:
        key, default = self._known(name)
        if isinstance(default, int) and not self._says(key):
            return default
        return self.keys.integer(key, None, least, most)

    def integers(self, name: str, n_layers: int, least: int = 1) -> tuple[int, ...]:
        """Of each layer, where files may say it of each or of all."""
        if not isinstance(self.raw(name), list | tuple):
            return (self.integer(name, least),) * n_layers
        return self.keys.integers(self.key(name), n_layers, least)

    def items(self, name: str, allowed: Iterable[Item], n_layers: int) -> tuple[Item, ...]:
        """Of each layer one of ``allowed``."""
        return self.keys.items(self.key(name), allowed, n_layers)

    def layers(self, name: str) -> list[int] | None:
        """Those that the file lists; None where it lists none."""
        said = self.raw(name)
        if said is None:
            return None
        if not isinstance(said, list) or not all(
            type(i) is int and 0 <= i < MAX_LAYERS for i in said
        ):
            raise self.error(name, said, "a list of layers")
        return said

    def of_some(self, name: str) -> int:
        """What files say of all layers, or of some beside 0 of the others."""
        said = self.raw(name)
        if not isinstance(said, list | tuple):
            return self.integer(name)
        counts = {count for count in said if count != 0}
        if len(counts) != 1 or not all(type(count) is int and count > 0 for count in counts):
            raise self.error(name, said, "one number of some layers, and 0 of the others")
        return int(counts.pop())

    def number(self, name: str, least: float = 0.0, most: float = LARGEST) -> float:
        key, default = self._known(name)
        if isinstance(default, int | float) and not self._says(key):
            return float(default)
        return self.keys.number(key, None, least, most)

    def flag(self, name: str) -> bool:
        key, default = self._known(name)
        if isinstance(default, bool) and not self._says(key):
            return default
        return self.keys.flag(key)

    def is_true(self, name: str) -> bool:
        """A flag that files may say as a number, too."""
        value = self.raw(name)
        return bool(value) if type(value) is int else self.flag(name)

    def word(self, name: str, allowed: Iterable[str]) -> str:
        key, default = self._known(name)
        if isinstance(default, str) and not self._says(key):
            return default
        return self.keys.word(key, allowed)

    def is_null(self, name: str) -> bool:
        return self.keys.is_null(self.key(name))

    def of_tensors(self, name: str) -> bool:
        """Whether the tensors of a GGUF file say what config.json has a field for."""
        field = self.family.fields.get(name)
        return self.kind == "gguf" and field is not None and bool(field.hf) and not field.gguf

    def error(self, name: str, value: object, expected: str) -> ModelError:
        return self.keys.error(self.key(name), value, expected)

    def refuse_others(self) -> None:
        """Raises ModelError on a key of ``Family.harmless`` whose value would change something."""
        for name, values in self.family.harmless.items():
            if name not in self._own() and values is not None:
                self.keys.refuse(name, *values)

    def unread(self, harmless: Collection[str]) -> tuple[str, ...]:
        """Keys of the file that nobody knows."""
        return self.keys.unread({*harmless, *self.family.harmless, *self._own()})

    def _own(self) -> set[str]:
        return {self.key(name) for name in self.family.fields}

    def _says(self, key: str) -> bool:
        return bool(key) and self.keys.has(key)

    def _known(self, name: str) -> tuple[str, Default]:
        field = self.family.fields.get(name)
        if field is None:
            return "", NEUTRAL[name]
        return (field.hf, field.default) if self.kind == "hf" else (field.gguf, field.gguf_default)
