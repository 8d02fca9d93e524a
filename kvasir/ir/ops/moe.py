"""Mixture of experts: routing, and experts over pairs; pair p belongs to token p // top_k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvasir.ir.numerics import wide
from kvasir.ir.ops.base import (
    BOTH,
    LOWERED,
    RAW,
    Call,
    Env,
    FloatArray,
    Op,
    OpDef,
    Rows,
    TensorType,
    Value,
    Weight,
    attrs_of,
    f32,
    per_element,
    require,
    width,
)
from kvasir.ir.ops.rows import activate


def _route_infer(op: Op, ins: Sequence[Value], weights: Sequence[Weight]) -> tuple[TensorType, ...]:
    experts, k = op.integer("n_experts"), op.integer("top_k")
    require(
        width(ins[0]) == experts, f"{ins[0].name} has {width(ins[0])} columns for {experts} experts"
    )
    require(0 < k <= experts, f"top_k={k} of {experts} experts")
    return TensorType((ins[0].shape[0], k), "i32"), TensorType((ins[0].shape[0], k))


def _route(op: Op, ins: Sequence[Any], weights: Sequence[FloatArray], env: Env) -> tuple[Rows, ...]:
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
    require(
        ids.dtype == "i32" and ids.shape[1:] == (top_k,),
        f"{ids.name} is {ids.shape}, expected [T, {top_k}] i32",
    )


def _check_experts(weights: Sequence[Weight], k: int) -> None:
    for weight in weights:
        require(
            len(weight.shape) == 3 and weight.shape[2] == k,
            f"{weight.name} is {weight.shape}, rows have {k}",
        )
        same = weight.shape == weights[0].shape
        require(same, f"{weight.name} is {weight.shape}, {weights[0].name} is {weights[0].shape}")


def _experts_infer(
    op: Op, ins: Sequence[Value], weights: Sequence[Weight]
) -> tuple[TensorType, ...]:
    gate, up, down = weights
    _check_pairs(ins[1], op.integer("top_k"))
    _check_experts((gate, up), width(ins[0]))
    _check_experts((down,), gate.shape[1])
    return (TensorType((ins[0].shape[0], down.shape[1])),)


def _experts(
    op: Op, ins: Sequence[Any], weights: Sequence[FloatArray], env: Env
) -> tuple[Rows, ...]:
    k, ids = op.integer("top_k"), ins[1].reshape(-1)
    x = np.repeat(wide(ins[0]), k, axis=0)
    gate, up, down = weights
    h = f32(activate(expert_matmul(x, ids, gate), op.word("act")) * expert_matmul(x, ids, up))
    y = f32(expert_matmul(wide(h), ids, down))
    return (combine(y, ins[2]),)


def combine(y: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum over rank of weights [T, k] times pair rows [T * k, N]."""
    pairs = y.reshape(*weights.shape, -1).astype(np.float64)
    return f32((pairs * weights[..., None]).sum(axis=1))


def _expert_linear_infer(
    op: Op, ins: Sequence[Value], weights: Sequence[Weight]
) -> tuple[TensorType, ...]:
    gated = op.word("epilogue") == "gated"
    require(
        gated or op.word("epilogue") == "none",
        f"epilogue={op.word('epilogue')!r}, expected gated or none",
    )
    require(
        len(weights) == (2 if gated else 1),
        f"{len(weights)} weights with epilogue={op.word('epilogue')}",
    )
    require(
        (op.word("act") != "none") == gated,
        f"act={op.word('act')} with epilogue={op.word('epilogue')}",
    )
    _check_pairs(ins[1], op.integer("top_k"))
    _check_experts(weights, width(ins[0]))
    rows = "P" if op.flag("per_pair") else "T"
    require(ins[0].shape[0] == rows, f"{ins[0].name} has {ins[0].shape[0]} rows, expected {rows}")
    return (TensorType(("P", weights[0].shape[1])),)


def _expert_linear(
    op: Op, ins: Sequence[Any], weights: Sequence[FloatArray], env: Env
) -> tuple[Rows, ...]:
    x = wide(ins[0])
    x = x if op.flag("per_pair") else np.repeat(x, op.integer("top_k"), axis=0)
    parts = [expert_matmul(x, ins[1].reshape(-1), w) for w in weights]
    if op.word("epilogue") == "gated":
        return (f32(activate(parts[0], op.word("act")) * parts[1]),)
    return (f32(parts[0]),)


def _combine_infer(
    op: Op, ins: Sequence[Value], weights: Sequence[Weight]
) -> tuple[TensorType, ...]:
    require(ins[0].shape[0] == "P", f"{ins[0].name} has {ins[0].shape[0]} rows, expected P")
    require(ins[1].shape[1:] == (op.integer("top_k"),), f"{ins[1].name} is {ins[1].shape}")
    return (TensorType((ins[1].shape[0], width(ins[0]))),)


def _combine(
    op: Op, ins: Sequence[Any], weights: Sequence[FloatArray], env: Env
) -> tuple[Rows, ...]:
    return (combine(ins[0], ins[1]),)


def _pair_flops(call: Call) -> float:
    pairs = call.sizes.tokens * call.op.integer("top_k")
    return 2.0 * pairs * sum(weight.n_elements / weight.shape[0] for weight in call.weights)


def _expert_share(call: Call) -> float:
    """Experts that a step touches at most."""
    pairs = call.sizes.tokens * call.op.integer("top_k")
    return min(1.0, pairs / call.weights[0].shape[0])


_ROUTE = attrs_of(n_experts=int, top_k=int, normalize=bool)
_EXPERT_LINEAR = attrs_of(top_k=int, epilogue=str, act=str, per_pair=bool)

DEFS = (
    OpDef(
        "route",
        "The top_k likeliest experts (softmax over all, ties to the lowest id) and their weights.",
        BOTH,
        (1, 1),
        (0, 0),
        _ROUTE,
        _route_infer,
        _route,
        lambda call: 4.0 * call.rows(call.outs[0]),
    ),
    OpDef(
        "experts",
        "Gated MLPs of the chosen experts, summed by weight.",
        RAW,
        (3, 3),
        (3, 3),
        attrs_of(top_k=int, act=str),
        _experts_infer,
        _experts,
        _pair_flops,
        weight_share=_expert_share,
    ),
    OpDef(
        "expert_linear",
        "Pair rows times their expert's matrix.",
        LOWERED,
        (2, 2),
        (1, 2),
        _EXPERT_LINEAR,
        _expert_linear_infer,
        _expert_linear,
        _pair_flops,
        weight_share=_expert_share,
    ),
    OpDef(
        "combine",
        "Sum over rank of weights times pair rows.",
        LOWERED,
        (2, 2),
        (0, 0),
        attrs_of(top_k=int),
        _combine_infer,
        _combine,
        lambda call: 2.0 * call.op.integer("top_k") * per_element(1)(call),
    ),
)
