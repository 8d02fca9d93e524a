"""The programs of a tower of Qwen or Pixtral: rope over lines and columns, rows between those of a
table of positions, layers that see windows in turns with others, and a merger of neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from kvasir.core.tiles import MAX_TOKENS
from kvasir.ir.builder import Builder, WeightMaker
from kvasir.ir.bundle import CORNERS, PATCHES, SHARES, Tower, deep_patches
from kvasir.ir.program import FloatArray, Program
from kvasir.models.decoder import record_blocks
from kvasir.models.family import PixtralTowerSpec
from kvasir.models.parts import record_linear, record_norm
from kvasir.models.record_rope import plane_table, record_angles
from kvasir.models.rope import rope_table
from kvasir.models.spec import ROPE, RopeConfig
from kvasir.models.towers import QwenTower


def record_qwen_tower(config: QwenTower, weights: WeightMaker) -> Tower:
    """The raw programs."""
    table = _plane_table(config, MAX_TOKENS * config.tile.fold)
    runs = [range(begin, end) for begin, end in pairwise(_turns(config))]
    encoder, *stages = (
        _Stage(config, weights, table, x, not i).program() for i, x in enumerate(runs)
    )
    return Tower(
        encoder,
        _connector(config, weights),
        config.tile,
        np.zeros(0, np.int32),
        config.side,
        config.window,
        tuple(stages),
    )


def _turns(config: QwenTower) -> list[int]:
    """Where layers that see windows, and those that see the whole image, end in turns: of windows
    first, if there are only these none at once."""
    depth = len(config.encoder.layers)
    if not config.window:
        return [0, depth]
    sees_all = [i in config.full for i in range(depth)]
    changes = [i for i in range(1, depth) if sees_all[i] != sees_all[i - 1]]
    return [0, *([0] if sees_all[0] else []), *changes, depth]


@dataclass(slots=True)
class _Stage:
    """Some of a tower's layers, of which the first ones read patches."""

    config: QwenTower
    weights: WeightMaker
    table: FloatArray
    layers: range
    is_first: bool
    tapped: list[str] = field(default_factory=list)

    def program(self) -> Program:
        config, encoder = self.config, self.config.encoder
        name = "tower" if self.is_first else f"tower{self.layers.start}"
        builder = Builder(name, self.weights)
        columns = config.tile.n_columns if self.is_first else encoder.hidden_size
        x = builder.input(PATCHES, ("T", columns), "f32")
        if self.layers:
            builder.input("ends", ("T",), "i32")
            builder.constant(ROPE, self.table)
            record_angles(builder, encoder.ropes, {ROPE: config.head_dim})
        x = self._embedded(builder, x) if self.is_first else x
        x = record_blocks(builder, encoder, x, prefix="tower.", after=self._tap, layers=self.layers)
        if self.layers.stop == len(encoder.layers):
            x = self._rows(builder, x)
        return builder.build((x, *self.tapped))

    def _rows(self, builder: Builder, x: str) -> str:
        """What the merger reads of the last layer."""
        if "norm" not in self.config.spec.names:
            return x
        encoder, eps = self.config.encoder, self.config.merger_eps
        return record_norm(builder, encoder, x, "tower.norm", "tower.rows", eps)

    def _embedded(self, builder: Builder, patches: str) -> str:
        config, hidden = self.config, self.config.encoder.hidden_size
        names, bias = config.spec.names, config.spec.patch_bias
        x = record_linear(builder, patches, "tower.patch", "tower.x.patch", hidden, bias=bias)
        if "first_norm" in names:
            x = record_norm(builder, config.encoder, x, "tower.first_norm", "tower.x.norm")
        if not config.side:
            return x
        corners = builder.input(CORNERS, ("T", 4), "i32")
        shares = builder.input(SHARES, ("T", 4), "f32")
        table = builder.weight("tower.positions", (config.side**2, hidden))
        position = builder.op("between", (corners, shares), "tower.x.positions", (table,))
        return builder.op("add", (x, position), "tower.x")

    def _tap(self, layer: int, x: str) -> str:
        self.tapped.extend([x] * (layer in self.config.taps))
        return x


def _plane_table(config: QwenTower, rows: int) -> FloatArray:
    """As ``plane_table``; Pixtral's have every other frequency of a head each."""
    theta, dim = config.encoder.ropes[ROPE].theta, config.head_dim
    if not isinstance(config.spec, PixtralTowerSpec):
        return plane_table(theta, dim, rows)
    cos, sin = np.split(rope_table(RopeConfig(theta), dim, rows), 2, axis=1)
    return np.concatenate([cos[:, ::2], cos[:, 1::2], sin[:, ::2], sin[:, 1::2]], axis=1)


def _connector(config: QwenTower, weights: WeightMaker) -> Program:
    builder, names = Builder("connector", weights), config.spec.names
    hidden, bias = config.encoder.hidden_size, config.merger_bias
    columns = hidden * config.tile.fold**2
    inner = config.out_size if isinstance(config.spec, PixtralTowerSpec) else columns
    inputs = {"tower.merger": PATCHES}
    inputs |= {f"tower.deep{i}": deep_patches(i) for i in range(len(config.taps))}
    outs: list[str] = []
    for name, rows in inputs.items():
        x = builder.input(rows, ("T", columns), "f32")
        if rows != PATCHES:
            x = record_norm(builder, config.encoder, x, f"{name}.norm", f"{name}.rows")
        if "merger.join" in names:
            x = record_linear(builder, x, f"{name}.join", f"{name}.joined", hidden)
        x = record_linear(builder, x, f"{name}.up", f"{name}.x", inner, bias)
        x = builder.op("act", (x,), f"{name}.hidden", act="gelu")
        out = f"{name}.media"
        outs.append(record_linear(builder, x, f"{name}.down", out, config.out_size, bias))
    return builder.build(tuple(outs))
