"""The programs of a tower, as its config describes them."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from kvasir.core.tiles import TileSpec
from kvasir.ir.builder import Builder, WeightMaker
from kvasir.ir.bundle import IS_MEDIA, PATCHES, Tower
from kvasir.ir.program import Program
from kvasir.ir.tiles import Ints, folded
from kvasir.models.decoder import record_blocks
from kvasir.models.parts import record_embed, record_linear, record_norm
from kvasir.models.pooled_programs import record_pooled_tower
from kvasir.models.qwen_programs import record_qwen_tower
from kvasir.models.spec import NO_ROPE, BlockSpec
from kvasir.models.towers import AnyTower, PooledTower, QwenTower, TowerConfig

_ROW_EPS = 1e-5
"""Of the norm of rows side by side."""


def record_tower(config: AnyTower, weights: WeightMaker) -> Tower:
    """The raw programs. ``weights``: where each of them lies."""
    if isinstance(config, PooledTower):
        return record_pooled_tower(config, weights)
    if isinstance(config, QwenTower):
        return record_qwen_tower(config, weights)
    tile, is_grid = config.tile, config.spec.cuts == "grid"
    at = positions(tile, config.trained) if is_grid else plain_positions(tile)
    newline = _newline(config, weights) if config.newline else None
    return Tower(_encoder(config, weights), _connector(config, weights), tile, at, newline=newline)


def plain_positions(tile: TileSpec) -> Ints:
    """i32 [n_encoded]: of each patch its row in a table of as many, from the top, row by row; what
    no patch makes comes first."""
    places = np.arange(tile.n_encoded, dtype=np.int32)
    first, grid = places[: tile.n_first], places[tile.n_first :].reshape(tile.side, tile.side)
    return np.concatenate([first, folded(grid, tile.fold)])


def positions(tile: TileSpec, trained: int) -> Ints:
    """i32 [n_patches]: of each patch its row in a table of ``trained`` x ``trained`` positions, of
    the part of the tile where it begins; in f32, as the models were trained."""
    step = np.float32(1.0) / np.float32(tile.side)
    begins = np.minimum(np.arange(tile.side, dtype=np.float32) * step, np.float32(1.0 - 1e-6))
    inner = (1 / trained + np.arange(trained - 1) * (1 / trained)).astype(np.float32)
    at = np.searchsorted(inner, begins, side="right")
    grid = at[:, None] * trained + at[None, :]
    found: Ints = folded(grid.astype(np.int32), tile.fold)
    return found


def _encoder(config: TowerConfig, weights: WeightMaker) -> Program:
    builder, encoder, tile = Builder("tower", weights), config.encoder, config.tile
    patches = builder.input(PATCHES, ("T", tile.n_columns), "f32")
    at = builder.input("positions", ("T",), "i32")
    builder.input("ends", ("T",), "i32")
    builder.constant(NO_ROPE, np.zeros((encoder.max_positions, 0), np.float32))
    hidden = encoder.hidden_size
    x = record_linear(builder, patches, "tower.patch", "tower.x.patch", hidden, bias=True)
    if tile.n_first:
        x = _with_first(builder, x, hidden)
    shape = encoder.max_positions, hidden
    position = record_embed(builder, at, "tower.positions", shape, "tower.x.positions")
    x = builder.op("add", (x, position), "tower.x")
    x = record_blocks(builder, encoder, x, prefix="tower.")
    if "norm" in config.spec.tensors:
        x = record_norm(builder, encoder, x, "tower.norm", "tower.rows")
    return builder.build((x,))


def _with_first(builder: Builder, x: str, hidden: int) -> str:
    """``x`` with a row of its own in place of what no patch makes."""
    types = builder.input("types", ("T",), "i32")
    is_first = builder.input(IS_MEDIA, ("T",), "i32")
    first = record_embed(builder, types, "tower.first", (1, hidden), "tower.x.first")
    return builder.op("merge_embeds", (x, first, is_first), "tower.x.all")


def _newline(config: TowerConfig, weights: WeightMaker) -> Program:
    builder, out = Builder("newline", weights), config.out_size
    types = builder.input("types", ("T",), "i32")
    end = record_embed(builder, types, "tower.newline", (1, out), "tower.end")
    return builder.build((end,))


def _connector(config: TowerConfig, weights: WeightMaker) -> Program:
    builder, parts = Builder("connector", weights), config.spec.connector
    columns, out = config.encoder.hidden_size * config.tile.n_joined, config.out_size
    x = builder.input(PATCHES, ("T", columns), "f32")
    if "soft_norm" in parts:
        weight, eps = builder.weight("tower.soft_norm", (columns,)), config.encoder.norm_eps
        x = builder.op("norm", (x,), "tower.soft", (weight,), eps=eps, to="f32", block=0)
    if "row_norm" in parts:
        layer = replace(config.encoder, block=BlockSpec(norm="layer_bias"))
        x = record_norm(builder, layer, x, "tower.row_norm", "tower.normed", _ROW_EPS)
    if "proj_in" in parts:
        x = record_linear(builder, x, "tower.proj_in", "tower.proj_in.out", out, bias=True)
        x = builder.op("act", (x,), "tower.hidden", act="gelu")
    x = record_linear(builder, x, "tower.proj", "tower.media", out, bias="proj_in" in parts)
    return builder.build((x,))
