"""Ops with weight matrices [N, K]: embedding, linear, LM head; and the draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvasir.ir.numerics import wide
from kvasir.ir.ops.base import BOTH, attrs_of, defines, f32
from kvasir.ir.ops.checks import require, require_columns, require_shape, width
from kvasir.ir.ops.rows import activate, as_type, gated, typed
from kvasir.ir.ops.types import Arrays, Call, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import Op

EPILOGUES = ("none", "add", "gated", "act")
ACTIVATES = ("gated", "act")
"""Epilogues of an activation, which give rows of any type."""
_LINEAR = attrs_of(n_segments=int, bias=bool, epilogue=str, act=str, to=str, block=int)


def _rows_share(call: Call) -> float:
    return min(1.0, call.rows(call.outs[0]) / call.weights[0].shape[0])


def matmul_flops(call: Call) -> float:
    """Two operations for each weight and row that meet."""
    matrices = sum(weight.n_elements for weight in call.weights if len(weight.shape) == 2)
    return 2.0 * call.rows(call.outs[0]) * matrices


@defines(BOTH, "i32[r] | [n,c] -> [r,c]", attrs=attrs_of(scale=float), weight_share=_rows_share)
def embed(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Rows of the embedding by token id, times scale."""
    return (f32(weights[0][ins[0]] * np.float32(op.number("scale"))),)


def _segments(op: Op, weights: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    n = op.integer("n_segments")
    return weights[:n], weights[n:]


def _linear_infer(op: Op, ins: Values, weights: Weights) -> Types:
    k, epilogue, act = width(ins[0]), op.word("epilogue"), op.word("act")
    matrices, biases = _segments(op, weights)
    require(epilogue in EPILOGUES, f"epilogue={epilogue!r}, expected one of {', '.join(EPILOGUES)}")
    require(
        len(biases) == (len(matrices) if op.flag("bias") else 0),
        f"{len(biases)} biases, bias={op.flag('bias')}",
    )
    require((len(ins) == 2) == (epilogue == "add"), f"{len(ins)} inputs with epilogue={epilogue}")
    require((act != "none") <= (epilogue in ACTIVATES), f"act={act} with epilogue={epilogue}")
    for weight in matrices:
        require_columns(weight, k)
    for weight, bias in zip(matrices, biases, strict=False):
        require_shape(bias, weight.shape[:1])
    columns = sum(weight.shape[0] for weight in matrices)
    if epilogue == "gated":
        same = len(matrices) == 2 and matrices[0].shape == matrices[1].shape
        require(same, "a gated epilogue needs two segments (gate, up) of the same shape")
        columns //= 2
    out = typed(op, (ins[0].shape[0], columns), columns)
    require(out.dtype == "f32" or epilogue in ACTIVATES, f"to={out.dtype} with epilogue={epilogue}")
    require(
        epilogue != "add" or ins[1].type == out,
        f"residual {ins[-1].name} is {ins[-1].type}, expected {out}",
    )
    return (out,)


@defines(BOTH, _linear_infer, n_ins=(1, 2), n_weights=(1, None), attrs=_LINEAR, flops=matmul_flops)
def linear(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """x W^T per segment, side by side; + bias; then + residual (add), act of it (act), or act(gate)
    * up (gated)."""
    x = wide(ins[0])
    matrices, biases = _segments(op, weights)
    parts = [x @ w.T.astype(np.float64) for w in matrices]
    if biases:
        parts = [part + bias for part, bias in zip(parts, biases, strict=True)]
    if op.word("epilogue") == "gated":
        gate, up = parts
        y = gated(gate, up, op.word("act"))
        return (as_type(y, op.word("to"), op.integer("block")),)
    whole = np.concatenate(parts, axis=1)
    if op.word("epilogue") == "act":
        y = f32(activate(whole, op.word("act")))
        return (as_type(y, op.word("to"), op.integer("block")),)
    y = f32(whole)
    return (y + ins[1] if op.word("epilogue") == "add" else y,)


@defines(BOTH, "*[r,k] | [n,k] [n]? -> [r,n]", flops=matmul_flops)
def lm_head(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Logits of the gathered rows, + bias where there is one."""
    logits = wide(ins[0]) @ weights[0].T.astype(np.float64)
    return (f32(logits + weights[1] if len(weights) == 2 else logits),)


@defines(BOTH, "[r,n] -> i32[r]")
def sample(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """One token for each logit row."""
    return (env.sample(ins[0]),)


DEFS = (embed, linear, lm_head, sample)
