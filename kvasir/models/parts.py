"""Linears, norms and factors as the builder records them, and embeddings that layers have of their
own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvasir.ir.builder import Builder
from kvasir.models.spec import ModelConfig

QUICK_GELU = "quick_gelu"
"""An activation of MLPs without a gate, of several ops."""
QUICK = 1.702
_IDS = "layer_ids"
"""A constant: of each token the row that it has in the tables of layers."""


def record_norm(
    builder: Builder, config: ModelConfig, x: str, weight: str, out: str, eps: float = 0.0
) -> str:
    """``out``: ``x`` after the family's norm of rows, with the weight of that name; ``eps`` in
    place of the model's."""
    names = [weight, f"{weight}.bias"] if config.block.norm == "layer_bias" else [weight]
    kind = "norm" if config.block.norm == "rms" else "layer_norm"
    weights = tuple(builder.weight(name, (builder.columns(x),)) for name in names)
    return builder.op(kind, (x,), out, weights, eps=eps or config.norm_eps, to="f32", block=0)


def record_linear(
    builder: Builder, x: str, weight: str, out: str, n: int, bias: bool = False
) -> str:
    """``out``: ``x`` times a matrix of ``n`` rows of that name, plus a bias or not."""
    return record_linears(builder, x, {weight: n}, out, bias)


def record_linears(
    builder: Builder, x: str, sizes: Mapping[str, int], out: str, bias: bool = False
) -> str:
    """``out``: ``x`` times matrices, side by side. ``sizes``: rows of each, by name."""
    width = builder.columns(x)
    weights = [builder.weight(name, (n, width)) for name, n in sizes.items()]
    if bias:
        weights += [builder.weight(f"{name}.bias", (n,)) for name, n in sizes.items()]
    return builder.op(
        "linear",
        (x,),
        out,
        tuple(weights),
        n_segments=len(sizes),
        bias=bias,
        epilogue="none",
        act="none",
        to="f32",
        block=0,
    )


def record_embed(
    builder: Builder, ids: str, table: str, shape: tuple[int, int], out: str, scale: float = 1.0
) -> str:
    """``out``: rows of the table of that name and shape, by ``ids``, times a factor."""
    return builder.op("embed", (ids,), out, (builder.weight(table, shape),), scale=scale)


def record_head_norm(
    builder: Builder, x: str, out: str, n_heads: int, eps: float, weights: tuple[str, ...] = ()
) -> str:
    """``out``: each of the equal heads of ``x`` by itself, times a weight or not."""
    sizes = {"n_heads": n_heads, "head_dim": builder.columns(x) // n_heads}
    return builder.op("head_norm", (x,), out, weights, **sizes, eps=eps)


def record_scale(builder: Builder, x: str, factor: float, out: str) -> str:
    """``out``: ``x`` times a factor; ``x`` itself where that is 1."""
    if factor == 1.0:
        return x
    return builder.op("scale", (x,), out, factor=factor, softcap=0.0)


def record_act(builder: Builder, parts: tuple[str, ...], act: str, out: str) -> str:
    """``out``: the activation of one of ``parts``, or of the first times the second. Of quick GELU
    the part is ``QUICK`` times what it is of, as ``quick_rows`` has it."""
    if act != QUICK_GELU:
        return builder.op("gated_act" if len(parts) > 1 else "act", parts, out, act=act)
    x = builder.op("act", parts, f"{out}.silu", act="silu")
    return record_scale(builder, x, 1 / QUICK, out)


def quick_rows(builder: Builder, x: str, act: str, out: str) -> str:
    """What the linear in front of quick GELU reads, whose bias is ``QUICK`` times the model's: that
    GELU (Hendrycks & Gimpel 2016), x sigmoid(1.702 x), is the silu of 1.702 x over 1.702."""
    return record_scale(builder, x, QUICK, out) if act == QUICK_GELU else x


class LayerRecorder:
    """Records into a layer: names of its weights and of what it makes begin with that."""

    def __init__(self, builder: Builder, config: ModelConfig, layer: int, prefix: str = "") -> None:
        """``prefix``: before all these names."""
        self.builder, self.config, self.layer = builder, config, layer
        self._weights, self._values = f"{prefix}layers.{layer}.", f"{prefix}l{layer}."

    def norm(self, x: str, name: str, out: str = "", eps: float = 0.0) -> str:
        out = out or self.value(name)
        return record_norm(self.builder, self.config, x, self._weights + name, out, eps)

    def linear(self, x: str, name: str, n: int, bias: bool = False, *, out: str = "") -> str:
        out = out or self.value(name)
        return record_linear(self.builder, x, self._weights + name, out, n, bias)

    def linears(self, x: str, sizes: Mapping[str, int], name: str) -> str:
        """Several, side by side."""
        each = {self._weights + weight: n for weight, n in sizes.items()}
        return record_linears(self.builder, x, each, self.value(name))

    def scaled(self, x: str, factor: float, name: str) -> str:
        return record_scale(self.builder, x, factor, self.value(name))

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        return self.builder.weight(self._weights + name, shape)

    def value(self, name: str) -> str:
        return self._values + name


def layer_embeddings(builder: Builder, config: ModelConfig, tokens: str, x: str) -> str:
    """Of all layers side by side, ``layer_embed`` columns each: a table of their own and a
    projection of the rows ``x``, normed, half of the variance each. Empty where there are none."""
    width, n_layers = config.layer_embed, len(config.layers)
    if not width:
        return ""
    if config.layer_vocab < config.vocab_size:
        ids = np.arange(config.vocab_size, dtype=np.float32)
        builder.constant(_IDS, np.where(ids < config.layer_vocab, ids, np.float32(0)))
        tokens = builder.op("rename_tokens", (tokens,), "e.tokens", ids=_IDS)
    shape = config.layer_vocab, n_layers * width
    own = record_embed(builder, tokens, "layer_embed", shape, "e.own", width**0.5)
    y = record_linear(builder, x, "layer_proj", "e.proj", n_layers * width)
    y = record_scale(builder, y, config.hidden_size**-0.5, "e.scaled")
    weights = (builder.weight("layer_proj_norm", (width,)),)
    y = record_head_norm(builder, y, "e.norm", n_layers, config.norm_eps, weights)
    both = builder.op("add", (y, own), "e.sum")
    return record_scale(builder, both, 2.0**-0.5, "e")
