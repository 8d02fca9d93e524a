"""Mixture of experts: routing, and experts over pairs; pair p belongs to token p // top_k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir.ir.numerics import wide
from kvasir.ir.ops.base import BOTH, LOWERED, RAW, attrs_of, defines, f32, per_element
from kvasir.ir.ops.checks import require, require_columns, require_shape, require_type, width
from kvasir.ir.ops.rows import activate, gated, sigmoid
from kvasir.ir.ops.types import Arrays, Call, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import FloatArray, Op, TensorType, Value, Weight

MAX_EXPERTS = 1024
"""Of a layer."""
SCORES = ("softmax", "sigmoid", "late_sigmoid")
GROUP_SCORES = ("best", "best_two")
_ROUTE = attrs_of(
    **dict.fromkeys(("n_experts", "top_k", "n_groups", "top_groups"), int),
    **dict.fromkeys(("score", "group_score"), str),
    normalize=bool,
    scale=float,
)
_EXPERT_LINEAR = attrs_of(top_k=int, epilogue=str, act=str, bias=bool, per_pair=bool)


def _pair_flops(call: Call) -> float:
    pairs = call.sizes.tokens * call.op.integer("top_k")
    return 2.0 * pairs * sum(weight.n_elements / weight.shape[0] for weight in call.weights)


def _expert_share(call: Call) -> float:
    """Experts that a step is expected to touch, where any is as likely as another."""
    missed = 1.0 - call.op.integer("top_k") / call.weights[0].shape[0]
    return float(1.0 - missed**call.sizes.tokens)


def _route_infer(op: Op, ins: Values, weights: Weights) -> Types:
    experts, k, groups, top = op.integers("n_experts", "top_k", "n_groups", "top_groups")
    score, rule, rows = op.word("score"), op.word("group_score"), ins[0].shape[0]
    require_shape(ins[0], (rows, experts))
    require(experts <= MAX_EXPERTS, f"{experts} experts, at most {MAX_EXPERTS} are possible")
    require(groups > 0 and experts % groups == 0, f"{experts} experts in {groups} groups")
    require(0 < top <= groups, f"top_groups={top} of {groups} groups")
    kept = experts // groups * top
    require(0 < k <= kept, f"top_k={k} of {kept} experts")
    require(score in SCORES, f"score={score!r}, expected one of {', '.join(SCORES)}")
    require(rule in GROUP_SCORES, f"group_score={rule!r}, expected best or best_two")
    require(rule == "best" or experts > groups, "group_score=best_two of groups of one expert")
    for bias in weights:
        require_shape(bias, (experts,))
    return TensorType((rows, k), "i32"), TensorType((rows, k))


@defines(
    BOTH,
    _route_infer,
    n_weights=(0, 1),
    attrs=_ROUTE,
    flops=lambda call: 4.0 * call.rows(call.outs[0]),
)
def route(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """The top_k experts of the best groups by score + bias, ties to the lowest id, and their
    weights: scores without bias, divided by their sum if ``normalize``, times ``scale``. With
    "late_sigmoid" they are chosen by logits, and weighed by the sigmoid of these."""
    scores = _scores(ins[0].astype(np.float64), op.word("score"))
    by = ins[0] if op.word("score") == "late_sigmoid" else scores
    choice = _of_best_groups(op, by + weights[0] if weights else by)
    ids = _best(choice, op.integer("top_k"))
    chosen = np.take_along_axis(scores, ids, axis=1).astype(np.float64)
    if op.flag("normalize"):
        chosen = chosen / (chosen.sum(axis=1, keepdims=True) + 1e-20)
    return ids.astype(np.int32), f32(chosen * op.number("scale"))


def _scores(logits: NDArray[np.float64], kind: str) -> FloatArray:
    if kind != "softmax":
        return f32(sigmoid(logits))
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return f32(p / p.sum(axis=1, keepdims=True))


def _of_best_groups(op: Op, choice: FloatArray) -> FloatArray:
    """``choice``, minus infinity where an expert's group is not among the best."""
    n, top = op.integers("n_groups", "top_groups")
    groups = choice.reshape(len(choice), n, -1)
    first = -np.sort(-groups, axis=2)[..., : 1 + (op.word("group_score") == "best_two")]
    kept = np.zeros((len(choice), n, 1), bool)
    np.put_along_axis(kept[..., 0], _best(first.sum(axis=2), top), True, axis=1)
    return np.where(kept, groups, np.float32(-np.inf)).reshape(choice.shape)


def _best(values: FloatArray, n: int) -> NDArray[np.int64]:
    return np.argsort(-values, axis=1, kind="stable")[:, :n]


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


def _check_biases(biases: Sequence[Weight], matrices: Sequence[Weight]) -> None:
    for bias, matrix in zip(biases, matrices, strict=True):
        require_shape(bias, matrix.shape[:2])


def _experts_infer(op: Op, ins: Values, weights: Weights) -> Types:
    n = n_matrices(len(weights))
    *inner, down = weights[:n]
    biases = weights[n:]
    _check_pairs(ins[1], op.integer("top_k"))
    _check_biases(biases, weights[:n] if biases else ())
    _check_experts(inner, width(ins[0]))
    _check_experts((down,), inner[0].shape[1])
    require(len(ins) == 3 or ins[0].shape[0] == "P", f"{ins[0].name} is of tokens, without weights")
    return (TensorType((ins[1].shape[0], down.shape[1])),)


def n_matrices(n_weights: int) -> int:
    """Of an expert: three with a gate, else two; each may have a bias."""
    return 2 + (n_weights % 3 == 0)


@defines(
    RAW,
    _experts_infer,
    n_ins=(2, 3),
    n_weights=(2, 6),
    attrs=attrs_of(top_k=int, act=str),
    flops=_pair_flops,
    weight_share=_expert_share,
)
def experts(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """MLPs of the chosen experts, summed by weight; weights: gate, up and down, or
    without a gate up and down, then a bias of each or none. Rows are of tokens or of pairs; without
    a third input they are of pairs, and simply summed."""
    k, ids, act = op.integer("top_k"), ins[1].reshape(-1), op.word("act")
    n_times, n = 1 if len(ins[0]) == len(ids) else k, n_matrices(len(weights))
    x = np.repeat(wide(ins[0]), n_times, axis=0)
    matrices, biases = weights[:n], weights[n:]
    inner = _affine(x, ids, matrices[:-1], biases[:-1])
    h = gated(inner[0], inner[1], act) if n == 3 else f32(activate(inner[0], act))
    (y,) = _affine(wide(h), ids, matrices[-1:], biases[-1:])
    return (weighted_sum(f32(y), _shares(ins[-1])),)


def _affine(
    x: NDArray[np.float64], ids: NDArray[np.int32], matrices: Arrays, biases: Arrays
) -> list[NDArray[np.float64]]:
    """Pair rows times each matrix of their expert, plus its bias."""
    parts = [expert_matmul(x, ids, matrix) for matrix in matrices]
    return [y + b[ids] for y, b in zip(parts, biases, strict=True)] if biases else parts


def weighted_sum(y: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum over rank of weights [T, k] times pair rows [T * k, N]."""
    pairs = y.reshape(*weights.shape, -1).astype(np.float64)
    return f32((pairs * weights[..., None]).sum(axis=1))


def _shares(last: FloatArray) -> FloatArray:
    """Weights of pairs; ones where ids are given in their place."""
    return np.ones(last.shape, np.float32) if last.dtype == np.int32 else last


@defines(BOTH, "[r,c] [r,top_k] -> [P,c]", attrs=attrs_of(top_k=int), flops=per_element(1))
def spread(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Pair rows: each token's row times the weight of each of its experts."""
    pairs = ins[0][:, None] * ins[1][..., None]
    return (f32(pairs.reshape(-1, pairs.shape[-1])),)


@defines(
    BOTH, "[r,c] i32[r,top_k] | [n,c] -> [P,c]", attrs=attrs_of(top_k=int), flops=per_element(1)
)
def gather_pairs(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Pair rows: each token's row with the columns that each of its experts names, in its place."""
    columns = weights[0][ins[1].astype(np.int64)].astype(np.int64)
    pairs = np.take_along_axis(ins[0][:, None], columns, axis=2)
    return (f32(pairs.reshape(-1, pairs.shape[-1])),)


def _expert_linear_infer(op: Op, ins: Values, weights: Weights) -> Types:
    epilogue, act = op.word("epilogue"), op.word("act")
    is_gated, has_bias = epilogue == "gated", op.flag("bias")
    require(is_gated or epilogue == "none", f"epilogue={epilogue!r}, expected gated or none")
    n = 1 + is_gated
    expected = f"epilogue={epilogue} bias={has_bias}"
    require(len(weights) == n * (1 + has_bias), f"{len(weights)} weights with {expected}")
    require((act != "none") == is_gated, f"act={act} with epilogue={epilogue}")
    _check_pairs(ins[1], op.integer("top_k"))
    _check_experts(weights[:n], width(ins[0]))
    _check_biases(weights[n:], weights[:n] if has_bias else ())
    rows = "P" if op.flag("per_pair") else "T"
    require(ins[0].shape[0] == rows, f"{ins[0].name} has {ins[0].shape[0]} rows, expected {rows}")
    return (TensorType(("P", weights[0].shape[1])),)


@defines(
    LOWERED,
    _expert_linear_infer,
    n_ins=(2, 2),
    n_weights=(1, 4),
    attrs=_EXPERT_LINEAR,
    flops=_pair_flops,
    weight_share=_expert_share,
)
def expert_linear(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Pair rows times their expert's matrix, plus its bias; weights: matrices, then biases."""
    x = wide(ins[0])
    x = x if op.flag("per_pair") else np.repeat(x, op.integer("top_k"), axis=0)
    is_gated = op.word("epilogue") == "gated"
    parts = _affine(x, ins[1].reshape(-1), weights[: 1 + is_gated], weights[1 + is_gated :])
    return (gated(parts[0], parts[1], op.word("act")) if is_gated else f32(parts[0]),)


@defines(
    LOWERED,
    "[P,c] *[r,top_k] -> [r,c]",
    attrs=attrs_of(top_k=int),
    flops=lambda call: 2.0 * call.op.integer("top_k") * per_element(1)(call),
)
def combine(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Sum over rank of weights times pair rows; of the rows alone where ids take their place."""
    return (weighted_sum(ins[0], _shares(ins[1])),)


DEFS = (route, spread, gather_pairs, experts, expert_linear, combine)
