"""Ops with a state: what the tokens of a sequence change one after the other, in f32.

A token's result depends on the tokens before it through the state alone, and the arithmetic of one
token is the same in a prompt and in a decode: chunks, batches and what was cached change no bit.
"""

from __future__ import annotations

import numpy as np

from kvasir.ir.ops.base import BOTH, attrs_of, defines, f32, per_element
from kvasir.ir.ops.checks import require, require_shape, require_type, width
from kvasir.ir.ops.rows import activate
from kvasir.ir.ops.types import Arrays, Call, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import STATE_ITEM_BYTES, Op, TensorType

MAX_TAPS = 8
"""Of the native kernels, which keep them in registers."""
_SHORT_CONV = attrs_of(layer=int, n_taps=int, gated=bool)


def conv_size(n_channels: int, n_taps: int) -> int:
    """Numbers of a sequence that a convolution keeps."""
    return n_channels * (n_taps - 1)


def _short_conv_infer(op: Op, ins: Values, weights: Weights) -> Types:
    require_type(ins[0], "f32")
    columns, n_taps, gated = width(ins[0]), op.integer("n_taps"), op.flag("gated")
    fits = columns % 3 == 0 or not gated
    require(fits, f"{ins[0].name} has {columns} columns, expected three equal parts")
    require(2 <= n_taps <= MAX_TAPS, f"n_taps={n_taps}, expected 2 to {MAX_TAPS}")
    channels = columns // 3 if gated else columns
    require_shape(weights[0], (n_taps, channels))
    require(len(weights) == 1 or not gated, "a gated convolution has no bias")
    for bias in weights[1:]:
        require_shape(bias, (channels,))
    return (TensorType((ins[0].shape[0], channels)),)


def _conv_traffic(call: Call) -> float:
    """A state for each token, read and written, as in decodes."""
    n_taps, n_channels = call.weights[0].shape
    return 2.0 * STATE_ITEM_BYTES * conv_size(n_channels, n_taps) * call.sizes.tokens


@defines(
    BOTH,
    _short_conv_infer,
    n_weights=(1, 2),
    attrs=_SHORT_CONV,
    flops=lambda call: per_element(2.0 * call.op.integer("n_taps") + 8.0)(call),
    extra_bytes=_conv_traffic,
)
def short_conv(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Convolution of each channel by itself, with zeros before the first token

        y[t] = sum_j weight[j] * u[t - n_taps + 1 + j]

    Gated (LFM2; Liquid AI 2025): rows are b | c | x, u = b * x, and the result is c * y. Else
    (Mamba; Gu & Dao 2023) rows are u, and the result is silu(y + bias). The state is the last
    n_taps - 1 of u, the oldest first."""
    n_taps, taps = op.integer("n_taps"), weights[0].astype(np.float64)
    if op.flag("gated"):
        b, c, x = np.split(ins[0], 3, axis=1)
        rows = f32(b * x)
    else:
        rows = ins[0]
    sums = np.empty_like(rows, np.float64)
    for token, row in enumerate(rows):
        state = env.state(op.integer("layer"), token).reshape(n_taps - 1, -1)
        seen = np.concatenate([state, row[None]])
        sums[token] = (taps * seen).sum(axis=0)
        state[:] = seen[1:]
    if op.flag("gated"):
        return (f32(f32(sums) * c),)
    return (f32(activate(sums + (weights[1] if len(weights) > 1 else 0.0), "silu")),)


DEFS = (short_conv,)
