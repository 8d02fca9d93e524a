"""Ops between the tokens of a draft program and those of its target."""

from __future__ import annotations

import numpy as np

from kvasir.ir.ops.base import BOTH, attrs_of, defines, per_element
from kvasir.ir.ops.checks import require, require_type, width
from kvasir.ir.ops.types import Arrays, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import Op, TensorType


def _rename_infer(op: Op, ins: Values, weights: Weights) -> Types:
    require_type(ins[0], "i32", rank=1)
    return (ins[0].type,)


@defines(BOTH, _rename_infer, attrs=attrs_of(ids=str), flops=per_element(0))
def rename_tokens(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Of each token the id that the constant ``ids`` [tokens of the target] has for it."""
    return (env.constants[op.word("ids")][ins[0]].astype(np.int32),)


def _place_infer(op: Op, ins: Values, weights: Weights) -> Types:
    require_type(ins[0], "f32")
    width(ins[0])
    n = op.integer("n_tokens")
    require(n > 0, f"n_tokens={n}, expected the tokens of a target")
    return (TensorType((ins[0].shape[0], n)),)


@defines(BOTH, _place_infer, attrs=attrs_of(ids=str, n_tokens=int), flops=per_element(0))
def place_logits(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Logits of a program's own tokens at the ids that the constant ``ids`` [own tokens] has for
    them, where that is not negative; minus infinity for all others."""
    ids = env.constants[op.word("ids")].astype(np.int64)
    logits = np.full((len(ins[0]), op.integer("n_tokens")), -np.inf, np.float32)
    logits[:, ids[ids >= 0]] = ins[0][:, ids >= 0]
    return (logits,)


DEFS = (rename_tokens, place_logits)
