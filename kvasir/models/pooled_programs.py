"""The programs of the tower of Gemma 4: places in tables of columns and of lines, rope over both,
and rows of patches whose means a matrix brings to the size of embeddings."""

from __future__ import annotations

import numpy as np

from kvasir.ir.builder import Builder, WeightMaker
from kvasir.ir.bundle import CORNERS, PATCHES, SHARES, Tower
from kvasir.ir.ops.places import CORNERS as N_CORNERS
from kvasir.ir.program import Program
from kvasir.models.decoder import record_blocks
from kvasir.models.parts import record_embed, record_head_norm, record_linear, record_scale
from kvasir.models.record_rope import plane_table, record_angles
from kvasir.models.spec import ROPE
from kvasir.models.towers import PooledTower


def record_pooled_tower(config: PooledTower, weights: WeightMaker) -> Tower:
    """The raw programs."""
    at = np.zeros(0, np.int32)
    return Tower(
        _encoder(config, weights), _connector(config, weights), config.tile, at, axis=config.axis
    )


def _encoder(config: PooledTower, weights: WeightMaker) -> Program:
    encoder, tile, hidden = config.encoder, config.tile, config.encoder.hidden_size
    builder = Builder("tower", weights)
    x = builder.input(PATCHES, ("T", tile.n_columns), "f32")
    builder.input("ends", ("T",), "i32")
    theta, rows = encoder.ropes[ROPE].theta, tile.most * tile.fold
    builder.constant(ROPE, plane_table(theta, config.head_dim, rows))
    record_angles(builder, encoder.ropes, {ROPE: config.head_dim})
    x = record_linear(builder, x, "tower.patch", "tower.x.patch", hidden)
    corners = builder.input(CORNERS, ("T", N_CORNERS), "i32")
    shares = builder.input(SHARES, ("T", N_CORNERS), "f32")
    table = builder.weight("tower.positions", (2 * config.axis, hidden))
    position = builder.op("between", (corners, shares), "tower.x.positions", (table,))
    x = builder.op("add", (x, position), "tower.x")
    x = record_blocks(builder, encoder, x, prefix="tower.")
    x = record_scale(builder, x, hidden**0.5, "tower.rows")
    return builder.build((_standardized(builder, config, x),))


def _standardized(builder: Builder, config: PooledTower, x: str) -> str:
    """Of every patch, as well as of the mean of several."""
    if not config.standardizes:
        return x
    hidden = config.encoder.hidden_size
    types = builder.input("types", ("T",), "i32")
    bias = record_embed(builder, types, "tower.minus_bias", (1, hidden), "tower.rows.bias")
    x = builder.op("add", (x, bias), "tower.rows.centred")
    return builder.op("weigh", (x,), "tower.rows.out", (builder.weight("tower.scale", (hidden,)),))


def _connector(config: PooledTower, weights: WeightMaker) -> Program:
    builder, hidden = Builder("connector", weights), config.encoder.hidden_size
    x = builder.input(PATCHES, ("T", hidden), "f32")
    x = record_head_norm(builder, x, "tower.normed", 1, config.encoder.norm_eps)
    return builder.build((record_linear(builder, x, "tower.proj", "tower.media", config.out_size),))
