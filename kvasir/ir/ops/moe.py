"""Mixture of experts: routing, and experts over pairs; pair p belongs to token p // top_k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir.ir.numerics import wide
from kvasir.ir.ops.base import BOTH, LOWERED, RAW, attrs_of, defines, f32, per_element
from kvasir.ir.ops.checks import require, require_columns, require_shape, require_type, width
from kvasir.ir.ops.rows import activate
from kvasir.ir.ops.types import Arrays, Call, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import FloatArray, Op, TensorType, Value, Weight

_ROUTE = attrs_of(n_experts=int, top_k=int, normalize=bool)
_EXPERT_LINEAR = attrs_of(top_k=int, epilogue=str, act=str, per_pair=bool)


def _pair_flops(call: Call) -> float:
    pairs = call.sizes.tokens * call.op.integer("top_k")
    return 2.0 * pairs * sum(weight.n_elements / weight.shape[0] for weight in call.weights)


def _expert_share(call: Call) -> float:
    """Experts that a step touches at most."""
    pairs = call.sizes.tokens * call.op.integer("top_k")
    return min(1.0, pairs / call.weights[0].shape[0])


def _route_infer(op: Op, ins: Values, weights: Weights) -> Types:
    experts, k = op.integers("n_experts", "top_k")
    require_shape(ins[0], (ins[0].shape[0], experts))
    require(0 < k <= experts, f"top_k={k} of {experts} experts")
    return TensorType((ins[0].shape[0], k), "i32"), TensorType((ins[0].shape[0], k))


@defines(BOTH, _route_infer, attrs=_ROUTE, flops=lambda call: 4.0 * call.rows(call.outs[0]))
def route(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """The top_k likeliest experts (softmax over all, ties to the lowest id) and their weights."""
    logits = ins[0].astype(np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    ids = np.argsort(-ins[0], axis=1, kind="stable")[:, : op.integer("top_k")]
    chosen = np.take_along_axis(p, ids, axis=1)
    if op.flag("normalize"):
        chosen = chosen / chosen.sum(axis=1, keepdims=True)
    return ids.astype(np.int32), f32(chosen)


def expert_matmul(
    x: NDArray[np.float64], ids: NDArray[np.int32], w: FloatArray
) -> NDArray[np.float64]:
    """Row p [K] times the matrix of its expert; w [E, N, K]."""
    out = np.zeros((len(x), w.shape[1]))
    for expert in np.unique(ids):
        rows = ids == expert
        out[rows] = x[rows] @ w[expert].T.astype(np.float64)
    return out


def _check_pairs(ids: Value, top_k: int) -> None:
    require_type(ids, "i32")
    require_shape(ids, (ids.shape[0], top_k))


def _check_experts(weights: Sequence[Weight], k: int) -> None:
    for weight in weights:
        require_columns(weight, k, rank=3)
        require_shape(weight, weights[0].shape)


def _experts_infer(op: Op, ins: Values, weights: Weights) -> Types:
    gate, up, down = weights
    _check_pairs(ins[1], op.integer("top_k"))
    _check_experts((gate, up), width(ins[0]))
    _check_experts((down,), gate.shape[1])
    return (TensorType((ins[0].shape[0], down.shape[1])),)


@defines(
    RAW,
    _experts_infer,
    n_ins=(3, 3),
    n_weights=(3, 3),
    attrs=attrs_of(top_k=int, act=str),
    flops=_pair_flops,
    weight_share=_expert_share,
)
def experts(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Gated MLPs of the chosen experts, summed by weight."""
    k, ids = op.integer("top_k"), ins[1].reshape(-1)
    x = np.repeat(wide(ins[0]), k, axis=0)
    gate, up, down = weights
    h = f32(activate(expert_matmul(x, ids, gate), op.word("act")) * expert_matmul(x, ids, up))
    y = f32(expert_matmul(wide(h), ids, down))
    return (weighted_sum(y, ins[2]),)


def weighted_sum(y: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum over rank of weights [T, k] times pair rows [T * k, N]."""
    pairs = y.reshape(*weights.shape, -1).astype(np.float64)
    return f32((pairs * weights[..., None]).sum(axis=1))


def _expert_linear_infer(op: Op, ins: Values, weights: Weights) -> Types:
    epilogue, act = op.word("epilogue"), op.word("act")
    gated = epilogue == "gated"
    require(gated or epilogue == "none", f"epilogue={epilogue!r}, expected gated or none")
    require(len(weights) == 1 + gated, f"{len(weights)} weights with epilogue={epilogue}")
    require((act != "none") == gated, f"act={act} with epilogue={epilogue}")
    _check_pairs(ins[1], op.integer("top_k"))
    _check_experts(weights, width(ins[0]))
    rows = "P" if op.flag("per_pair") else "T"
    require(ins[0].shape[0] == rows, f"{ins[0].name} has {ins[0].shape[0]} rows, expected {rows}")
    return (TensorType(("P", weights[0].shape[1])),)


@defines(
    LOWERED,
    _expert_linear_infer,
    n_ins=(2, 2),
    n_weights=(1, 2),
    attrs=_EXPERT_LINEAR,
    flops=_pair_flops,
    weight_share=_expert_share,
)
def expert_linear(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Pair rows times their expert's matrix."""
    x = wide(ins[0])
    x = x if op.flag("per_pair") else np.repeat(x, op.integer("top_k"), axis=0)
    parts = [expert_matmul(x, ins[1].reshape(-1), w) for w in weights]
    if op.word("epilogue") == "gated":
        return (f32(activate(parts[0], op.word("act")) * parts[1]),)
    return (f32(parts[0]),)


def _combine_infer(op: Op, ins: Values, weights: Weights) -> Types:
    require(ins[0].shape[0] == "P", f"{ins[0].name} has {ins[0].shape[0]} rows, expected P")
    require_shape(ins[1], (ins[1].shape[0], op.integer("top_k")))
    return (TensorType((ins[1].shape[0], width(ins[0]))),)


@defines(
    LOWERED,
    _combine_infer,
    n_ins=(2, 2),
    attrs=attrs_of(top_k=int),
    flops=lambda call: 2.0 * call.op.integer("top_k") * per_element(1)(call),
)
def combine(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Sum over rank of weights times pair rows."""
    return (weighted_sum(ins[0], ins[1]),)


DEFS = (route, experts, expert_linear, combine)
