"""Readers of rotary embeddings; fields and defaults are those of ``transformers`` and llama.cpp."""

from __future__ import annotations

from kvasir.formats.mapped import TensorTable
from kvasir.models.fields import Fields
from kvasir.models.keys import Keys
from kvasir.models.spec import ROPE, ROPE_WINDOW, RopeConfig

_TYPES = ("default", "linear", "llama3")
_FACTORS = "rope_freqs.weight"


def read_ropes(fields: Fields, tensors: TensorTable, head_dim: int) -> dict[str, RopeConfig]:
    """By name; that of windowed layers where the family gives them one of their own."""
    is_hf = fields.kind == "hf"
    ropes = {ROPE: _of_folder(fields) if is_hf else _of_gguf(fields, tensors, head_dim)}
    if "window_theta" in fields.family.fields:
        ropes[ROPE_WINDOW] = _of_windows(fields)
    return ropes


def _of_folder(fields: Fields) -> RopeConfig:
    """``rope_scaling`` with ``rope_theta`` beside it, or the newer ``rope_parameters``."""
    keys, theta = fields.keys, fields.number("theta", least=1.0)
    _refuse_partial(keys)
    older, newer = keys.table("rope_scaling"), keys.table("rope_parameters")
    table = newer or older
    if table is None:
        return RopeConfig(theta)
    table = table.table("full_attention") or table
    return _rope_of(table, table.number("rope_theta", theta, least=1.0))


def _of_windows(fields: Fields) -> RopeConfig:
    theta = fields.number("window_theta", least=1.0)
    per_type = fields.keys.table("rope_parameters") if fields.kind == "hf" else None
    nested = per_type.table("sliding_attention") if per_type is not None else None
    if nested is not None:
        return _rope_of(nested, nested.number("rope_theta", 1e4, least=1.0))
    return RopeConfig(theta)


def _rope_of(table: Keys, theta: float) -> RopeConfig:
    _refuse_partial(table)
    name = "rope_type" if table.has("rope_type") else "type"
    kind = table.word(name, _TYPES, "default")
    if kind == "default":
        return RopeConfig(theta)
    factor = table.number("factor", least=1.0)
    if kind == "linear":
        return RopeConfig(theta, "linear", factor)
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    if high <= low:
        raise table.error("high_freq_factor", high, f"more than low_freq_factor = {low:g}")
    return RopeConfig(
        theta,
        "llama3",
        factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=table.integer("original_max_position_embeddings"),
    )


def _refuse_partial(table: Keys) -> None:
    if table.number("partial_rotary_factor", 1.0) != 1.0:
        raise table.error("partial_rotary_factor", table.raw("partial_rotary_factor"), "1.0")


def _of_gguf(fields: Fields, tensors: TensorTable, head_dim: int) -> RopeConfig:
    keys, theta = fields.keys, fields.number("theta", least=1.0)
    scaling = keys.word("rope.scaling.type", ("none", "linear"), "none")
    factors = tensors.get(_FACTORS)
    if factors is None:
        if scaling == "linear":
            return RopeConfig(theta, "linear", keys.number("rope.scaling.factor", least=1.0))
        return RopeConfig(theta)
    if scaling != "none":
        raise keys.error("rope.scaling.type", scaling, f"none beside tensor {_FACTORS}")
    if factors.shape != (head_dim // 2,):
        raise keys.error(_FACTORS, factors.shape, f"{head_dim // 2} factors, one for each pair")
    values = tuple(float(f) for f in factors.decode())
    if not all(0 < value < float("inf") for value in values):
        raise keys.error(_FACTORS, values, "positive factors")
    return RopeConfig(theta, "factors", factors=values)
