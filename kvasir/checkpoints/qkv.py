"""Queries, keys and values of GGUF files: one tensor or three, whatever a family usually has."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from kvasir.models.family import Family, TensorNames

_FUSED, _APART = "attn_qkv", "attn_q"


def is_fused(tensors: Iterable[str]) -> bool | None:
    """Whether a GGUF file has them in one tensor; None where it has neither, or both."""
    names = {name.split(".")[-2] for name in tensors if name.endswith(".weight")}
    return None if (_FUSED in names) == (_APART in names) else _FUSED in names


def with_qkv(family: Family, fused: bool | None) -> Family:
    """``family`` with the names of such a file."""
    if fused is None or not family.tensors.keys() >= {*"qkv"}:
        return family
    change = _fused if fused else _apart
    own = {part: change(part, family.tensors[part]) for part in "qkv"}
    return replace(family, tensors={**family.tensors, **own})


def _fused(part: str, names: TensorNames) -> TensorNames:
    if names.gguf != f"attn_{part}":
        return names
    return names._replace(gguf=_FUSED, gguf_step=f"{part}_of_qkv {names.gguf_step}".strip())


def _apart(part: str, names: TensorNames) -> TensorNames:
    if (names.gguf, names.gguf_step) != (_FUSED, f"{part}_of_qkv"):
        return names
    return names._replace(gguf=f"attn_{part}", gguf_step="")
