"""Ops between the tokens of a draft program and those of its target."""

from __future__ import annotations

import numpy as np

from kvasir.ir.ops.base import BOTH, attrs_of, defines, per_element
from kvasir.ir.ops.types import Arrays, Env, Inputs, Outputs
from kvasir.ir.program import Op


@defines(BOTH, "i32[r] -> i32[r]", attrs=attrs_of(ids=str), flops=per_element(0))
def rename_tokens(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Of each token the id that the constant ``ids`` [tokens of the target] has for it."""
    return (env.constants[op.word("ids")][ins[0]].astype(np.int32),)


@defines(BOTH, "[r,n] -> [r,n_tokens]", attrs=attrs_of(ids=str, n_tokens=int), flops=per_element(0))
def place_logits(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Logits of a program's own tokens at the ids that the constant ``ids`` [own tokens] has for
    them, where that is not negative; minus infinity for all others."""
    ids = env.constants[op.word("ids")].astype(np.int64)
    logits = np.full((len(ins[0]), op.integer("n_tokens")), -np.inf, np.float32)
    logits[:, ids[ids >= 0]] = ins[0][:, ids >= 0]
    return (logits,)


DEFS = (rename_tokens, place_logits)
