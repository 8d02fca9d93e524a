"""Medusa's heads (Cai et al., arXiv 2401.10774): each guesses one further token from the same rows
of the target, without looking at the others."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from kvasir.ir.builder import Builder
from kvasir.ir.program import Program, Weight
from kvasir.models.export import Export
from kvasir.models.heads import FEATURE
from kvasir.models.lm_head import last_norm, record_logits
from kvasir.models.parts import record_linear, record_norm
from kvasir.models.spec import ModelConfig


class MedusaHeads(msgspec.Struct, frozen=True):
    """Weights come from nowhere."""

    target: ModelConfig
    n_heads: int
    n_layers: int
    """Of each head."""

    def weight(self, head: int, name: str, shape: tuple[int, ...]) -> Weight:
        """Where one of a head lies."""
        return Weight(name, shape)


class MedusaExport(Export):
    def record(
        self, builder: Builder, config: ModelConfig, x: str, tapped: dict[int, str]
    ) -> tuple[str, ...]:
        return (record_norm(builder, config, x, last_norm(config), FEATURE),)


def record_medusa(heads: MedusaHeads, i: int) -> Program:
    """The raw program of one head."""
    target = heads.target
    builder = Builder(f"medusa{i}", lambda name, shape: heads.weight(i, name, shape))
    feature = builder.input(FEATURE, ("T", target.hidden_size), "f32")
    logit_rows = builder.input("logit_rows", ("R",), "i32")
    x = builder.op("gather_rows", (feature, logit_rows), "rows")
    for j in range(heads.n_layers):
        y = record_linear(builder, x, f"layers.{j}", f"l{j}.y", target.hidden_size, bias=True)
        y = builder.op("act", (y,), f"l{j}.act", act="silu")
        x = builder.op("add", (x, y), f"l{j}.x")
    plain = replace(target, block=replace(target.block, head_bias=False))
    return builder.build(record_logits(builder, plain, x, "lm_head", target.vocab_size))
