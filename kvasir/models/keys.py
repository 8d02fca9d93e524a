"""Typed access to a model's config that names the field when something is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kvasir.core.errors import ModelError
from kvasir.models.spec import MAX_EXPERTS, MAX_HEAD_DIM, ExpertConfig

_LARGEST = 1e30


class Keys:
    """``config.json`` or GGUF metadata.

    ``prefix`` stands before every field; ``where`` names the file in errors.

    A ``default`` of None means that the field must be there. JSON null counts as missing.
    """

    def __init__(self, config: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._config, self._where, self._prefix = config, where, prefix

    def raw(self, name: str) -> Any:
        return self._config.get(self._prefix + name)

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

    def number(self, name: str, default: float | None = None, least: float = 0.0) -> float:
        value = self._get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(name, value, "a number")
        if not least <= value <= _LARGEST:
            raise self.error(name, value, f"a number from {least:g} to {_LARGEST:g}")
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

    def words(self, name: str, allowed: Iterable[str], length: int) -> tuple[str, ...]:
        value, allowed = self._get(name, None), tuple(allowed)
        fits = (
            isinstance(value, list | tuple)
            and len(value) == length
            and all(item in allowed for item in value)
        )
        if not fits:
            raise self.error(name, value, f"{length} entries, each one of {', '.join(allowed)}")
        return tuple(value)

    def table(self, name: str) -> Keys | None:
        """A nested object, or None when it is missing."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, value, "an object")
        return Keys(value, f"{self._where}, {name}")

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


class HeadFields(NamedTuple):
    """What a kind of file calls the width of a token, and numbers and size of heads."""

    hidden: str
    heads: str
    kv_heads: str
    head_dim: str


def read_heads(
    keys: Keys, fields: HeadFields, n_kv_heads: int | None = None, head_dim: int | None = None
) -> tuple[int, int, int, int]:
    """Width of a token, query heads, KV heads, size of a head. Where the file says nothing these
    are ``n_kv_heads``, by default as many as query heads, and ``head_dim``, by default their share
    of the width."""
    hidden, heads = keys.integer(fields.hidden), keys.integer(fields.heads)
    kv_heads = keys.integer(fields.kv_heads, n_kv_heads or heads)
    if heads % kv_heads:
        raise keys.error(fields.kv_heads, kv_heads, f"a divisor of {fields.heads} = {heads}")
    if head_dim is None and not keys.has(fields.head_dim) and hidden % heads:
        raise keys.error(fields.hidden, hidden, f"a multiple of {fields.heads} = {heads}")
    dim = keys.integer(fields.head_dim, head_dim or hidden // heads, most=MAX_HEAD_DIM)
    if dim % 2:
        raise keys.error(fields.head_dim, dim, "an even number")
    return hidden, heads, kv_heads, dim


def read_experts(
    keys: Keys, of: str, per_token: str, default: tuple[int, int] | tuple[None, None] = (None, None)
) -> ExpertConfig:
    """``of`` and ``per_token``: what a kind of file calls their number, and how many a token has;
    ``default``: both, where it may leave them out."""
    n_experts = keys.integer(of, default[0], most=MAX_EXPERTS)
    top_k = keys.integer(per_token, default[1])
    if top_k > n_experts:
        raise keys.error(per_token, top_k, f"at most {of} = {n_experts}")
    return ExpertConfig(n_experts, top_k)
