"""Ops that work on each row by itself: norms, activations, sums, casts, row selection."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
from numpy.typing import NDArray

from kvasir.ir.numerics import quantize_rows, round_bf16, wide
from kvasir.ir.ops.base import BOTH, RAW, attrs_of, defines, f32, per_element
from kvasir.ir.ops.checks import (
    require,
    require_columns,
    require_heads,
    require_shape,
    require_type,
    width,
)
from kvasir.ir.ops.types import Arrays, Env, Inputs, Outputs, Rows, Types, Values, Weights
from kvasir.ir.program import FloatArray, Op, TensorType, Value

ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "clamped_swiglu", "sigmoid", "relu2")
"""Of a gate; "clamped_swiglu" also of what it gates, "sigmoid" of a gate alone."""
APART = ("relu2",)
"""Activations that no linear computes while it writes its rows: they take a pass of their own."""
NORMS = ("norm", "layer_norm")
"""Kinds of ops that norm whole rows."""
_NORM = attrs_of(eps=float, to=str, block=int)
_HEADS = attrs_of(n_heads=int, head_dim=int, eps=float)
_CAST = attrs_of(to=str, block=int)
_SCALE = attrs_of(factor=float, softcap=float)


def activate(x: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
    """silu, GELU by tanh approximation or by erf (Hendrycks & Gimpel 2016), sigmoid, or the square
    of what is above 0 (So et al. 2021)."""
    if kind == "silu":
        return np.asarray(x / (1.0 + np.exp(-x)))
    if kind == "gelu_tanh":
        return np.asarray(0.5 * x * (1.0 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
    if kind == "gelu":
        return np.asarray(0.5 * x * (1.0 + np.vectorize(erf, otypes=[np.float64])(x / sqrt(2.0))))
    if kind == "sigmoid":
        return sigmoid(x)
    if kind == "relu2":
        return np.asarray(np.maximum(x, 0.0) ** 2)
    raise ValueError(f"unknown activation {kind!r}; known: {', '.join(ACTIVATIONS)}")


def gated(gate: NDArray[np.float64], up: NDArray[np.float64], kind: str) -> FloatArray:
    """act(gate) * up; "clamped_swiglu": of a gate of at most 7 and up between -7 and 7,
    gate * sigmoid(1.702 gate) * (up + 1)."""
    if kind != "clamped_swiglu":
        return f32(activate(gate, kind) * up)
    gate = np.minimum(gate, 7.0)
    return f32(gate * sigmoid(1.702 * gate) * (np.clip(up, -7.0, 7.0) + 1.0))


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.logaddexp(0.0, -x))


def as_type(x: FloatArray, dtype: str, block: int) -> Rows:
    """f32 rows as f32, bf16 or q8 rows."""
    if dtype == "q8":
        return quantize_rows(x, block)
    return round_bf16(x) if dtype == "bf16" else x


def rms_norm(x: NDArray[np.float64], weight: FloatArray | float, eps: float) -> NDArray[np.float64]:
    """Over the last axis (Zhang & Sennrich 2019)."""
    mean = (x * x).mean(axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + eps) * weight)


def layer_norm_rows(
    x: NDArray[np.float64], weight: FloatArray, bias: FloatArray | None, eps: float
) -> NDArray[np.float64]:
    """Over the last axis (Ba et al. 2016)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    y = rms_norm(centred, weight, eps)
    return y if bias is None else np.asarray(y + bias)


def soften(x: NDArray[np.float64], cap: float) -> NDArray[np.float64]:
    return cap * np.tanh(x / cap) if cap > 0 else x


def typed(op: Op, shape: tuple[str | int, ...], part: int) -> TensorType:
    """The rows that ``op`` gives as its ``to`` and ``block`` say, in whole ``part`` columns."""
    dtype, block = op.word("to"), op.integer("block")
    require(dtype in ("f32", "bf16", "q8"), f"to={dtype!r}, expected f32, bf16 or q8")
    require((dtype == "q8") == (block > 0), f"block={block} with to={dtype}")
    if block:
        require(block % 32 == 0 and part % block == 0, f"block={block} does not fit rows of {part}")
    return TensorType(shape, dtype, block)


def _cast_type(op: Op, value: Value) -> TensorType:
    require_type(value, "f32")
    return typed(op, value.shape, width(value))


def _norm_infer(op: Op, ins: Values, weights: Weights) -> Types:
    for weight in weights:
        require_columns(weight, width(ins[0]), rank=1)
    return (_cast_type(op, ins[0]),)


@defines(BOTH, _norm_infer, n_weights=(1, 1), attrs=_NORM, flops=per_element(4))
def norm(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """RMS norm of rows, written as f32, bf16 or q8."""
    y = f32(rms_norm(wide(ins[0]), weights[0], op.number("eps")))
    return (as_type(y, op.word("to"), op.integer("block")),)


@defines(BOTH, _norm_infer, n_weights=(1, 2), attrs=_NORM, flops=per_element(7))
def layer_norm(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Layer norm of rows, with or without bias, written as f32, bf16 or q8."""
    bias = weights[1] if len(weights) == 2 else None
    y = f32(layer_norm_rows(wide(ins[0]), weights[0], bias, op.number("eps")))
    return (as_type(y, op.word("to"), op.integer("block")),)


def _head_norm_infer(op: Op, ins: Values, weights: Weights) -> Types:
    heads, dim = op.integers("n_heads", "head_dim")
    require_heads(ins[0], heads, dim)
    for weight in weights:
        require_shape(weight, (dim,))
    return (ins[0].type,)


@defines(BOTH, _head_norm_infer, n_weights=(0, 1), attrs=_HEADS, flops=per_element(4))
def head_norm(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """RMS norm of each head of a row; without a weight, of ones."""
    x = ins[0].reshape(len(ins[0]), *op.integers("n_heads", "head_dim"))
    y = rms_norm(x.astype(np.float64), weights[0] if weights else 1.0, op.number("eps"))
    return (f32(y.reshape(ins[0].shape)),)


@defines(
    BOTH, lambda op, ins, weights: (_cast_type(op, ins[0]),), attrs=_CAST, flops=per_element(2)
)
def cast(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """f32 rows to bf16 or q8."""
    return (as_type(ins[0], op.word("to"), op.integer("block")),)


@defines(RAW, "[r,c] [r,c] -> [r,c]", attrs=attrs_of(act=str), flops=per_element(9))
def gated_act(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """act(gate) * up, or what else ``act`` makes of both."""
    return (gated(wide(ins[0]), wide(ins[1]), op.word("act")),)


@defines(BOTH, "[r,c] -> [r,c]", attrs=attrs_of(act=str), flops=per_element(8))
def act(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """act(x)."""
    return (f32(activate(wide(ins[0]), op.word("act"))),)


@defines(BOTH, "[r,c] [r,c] -> [r,c]", flops=per_element(1))
def add(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """a + b."""
    return (f32(ins[0] + ins[1]),)


@defines(BOTH, "[r,c] -> [r,c]", attrs=_SCALE, flops=per_element(2))
def scale(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """x * factor, then cap * tanh(x / cap) when softcap > 0."""
    return (f32(soften(wide(ins[0]) * np.float32(op.number("factor")), op.number("softcap"))),)


@defines(BOTH, "[r,c] [r,1] -> [r,c]", flops=per_element(1))
def gate_rows(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Each row times the sigmoid of its gate."""
    return (f32(ins[0] * sigmoid(wide(ins[1]))),)


@defines(BOTH, "*[s,c] i32[r] -> [r,c]", flops=per_element(0))
def gather_rows(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Rows of x by id."""
    return (ins[0][ins[1]],)


def _join_infer(op: Op, ins: Values, weights: Weights) -> Types:
    for value in ins:
        require_type(value, "f32")
        require_shape(value, (ins[0].shape[0], width(value)))
    return (TensorType((ins[0].shape[0], sum(map(width, ins)))),)


@defines(BOTH, _join_infer, n_ins=(2, 3), flops=per_element(0))
def join_columns(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Rows side by side."""
    return (f32(np.concatenate(ins, axis=1)),)


@defines(BOTH, "[r,c] [r,c] i32[r] -> [r,c]", flops=per_element(0))
def merge_embeds(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Rows of x, or of the second input where the third is not 0."""
    out, is_given = f32(ins[0]).copy(), ins[2] != 0
    out[is_given] = ins[1][is_given]
    return (out,)


@defines(BOTH, "[r,c] [r,c] i32[r] -> [r,c]", flops=per_element(1))
def add_embeds(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Rows of x, and where the third input is not 0 their sum with those of the second."""
    out, is_given = f32(ins[0]).copy(), ins[2] != 0
    out[is_given] += ins[1][is_given]
    return (out,)


@defines(BOTH, "[r,c] -> [r,c]", flops=per_element(2))
def pool(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Mean of each request's rows so far, summed in float64 in the order of their positions."""
    return (env.pool(ins[0]),)


DEFS = (
    *(norm, layer_norm, head_norm, cast, gated_act, act),
    *(add, scale, gate_rows, gather_rows, join_columns),
    *(merge_embeds, add_embeds, pool),
)
