"""Tables of rope, and angles by positions on several axes, as the builder records them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvasir.ir.builder import Builder
from kvasir.ir.bundle import ROPE_POSITIONS
from kvasir.ir.ops.places import AXES
from kvasir.ir.program import FloatArray
from kvasir.models.alibi import SLOPES, alibi_slopes
from kvasir.models.rope import rope_table
from kvasir.models.spec import NO_ROPE, ModelConfig, RopeConfig

OF_QUERIES = "queries_"
"""Before the name of a rope, the table that its queries turn by."""
_ANGLES = "angles_"
"""Before it, the rows of the table that tokens turn by."""


def record_ropes(builder: Builder, config: ModelConfig, rows: int) -> None:
    """Their tables, of ``rows`` positions, and angles; slopes of heads that have them."""
    dims = {layer.rope: layer.turned_dim for layer in config.layers}
    for name, rope in config.ropes.items():
        dim = rope.rotary_dim or dims[name]
        builder.constant(name, rope_table(rope, dim, rows))
        if rope.query_beta:
            builder.constant(OF_QUERIES + name, rope_table(rope, dim, rows, queries=True))
    if config.block.alibi:
        builder.constant(SLOPES, alibi_slopes(config.layers[0].n_heads))
    if NO_ROPE in dims:
        builder.constant(NO_ROPE, np.zeros((rows, 0), np.float32))
    record_angles(builder, config.ropes, dims)


def record_angles(
    builder: Builder, ropes: Mapping[str, RopeConfig], dims: Mapping[str, int]
) -> None:
    """Of ropes that turn by positions on several axes, once for all layers. ``dims``: elements of a
    head, by rope."""
    at = ""
    for name, rope in ropes.items():
        if rope.axes is None:
            continue
        at = at or builder.input(ROPE_POSITIONS, ("T", AXES), "i32")
        builder.op(
            "angles",
            (at,),
            _ANGLES + name,
            table=name,
            rotary_dim=rope.rotary_dim or dims[name],
            sections=rope.axes.sections,
            woven=rope.axes.woven,
        )


def plane_table(theta: float, head_dim: int, rows: int) -> FloatArray:
    """Of rope whose first pairs turn by lines and whose others by columns, with equal frequencies:
    cos | sin, f32 [rows, head_dim]."""
    cos, sin = np.split(rope_table(RopeConfig(theta), head_dim // 2, rows), 2, axis=1)
    return np.concatenate([cos, cos, sin, sin], axis=1)


def turned_by(name: str, rope: RopeConfig | None) -> str:
    """What the op ``rope`` reads beside its rows: positions of tokens, or their angles."""
    return "positions" if rope is None or rope.axes is None else _ANGLES + name
