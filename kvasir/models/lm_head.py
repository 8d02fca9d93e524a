"""The end of a decoder, as the builder records it: last norm, logits, the draw."""

from __future__ import annotations

from kvasir.ir.builder import Builder
from kvasir.models.parts import record_norm
from kvasir.models.spec import ModelConfig


def last_norm(config: ModelConfig) -> str:
    """The weight of the norm before the logits."""
    last = f"layers.{len(config.layers) - 1}.mlp_norm"
    return last if config.block.sum_norms else "final_norm"


def record_head(builder: Builder, config: ModelConfig, x: str, logit_rows: str) -> tuple[str, str]:
    """Logits of the rows of ``x`` that are asked for, and what is drawn."""
    rows = builder.op("gather_rows", (x, logit_rows), "rows")
    rows = record_norm(builder, config, rows, last_norm(config), "rows.norm")
    name = "embed" if config.tied else "lm_head"
    return record_logits(builder, config, rows, name, config.vocab_size)


def record_logits(
    builder: Builder, config: ModelConfig, rows: str, weight: str, n_tokens: int
) -> tuple[str, str]:
    """Of normed rows, by the matrix of that name; and what is drawn."""
    head = [builder.weight(weight, (n_tokens, builder.columns(rows)))]
    if config.block.head_bias:
        head.append(builder.weight("lm_head.bias", (n_tokens,)))
    logits = builder.op("lm_head", (rows,), "logits", tuple(head))
    scale, cap = config.logit_scale, config.final_softcap
    if cap > 0 or scale != 1.0:
        name = "logits.capped" if cap > 0 else "logits.scaled"
        logits = builder.op("scale", (logits,), name, factor=scale, softcap=cap)
    return logits, builder.op("sample", (logits,), "drawn")
