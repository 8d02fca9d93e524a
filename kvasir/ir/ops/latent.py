"""Latent attention (MLA; DeepSeek-AI 2024, arXiv 2405.04434), absorbed: queries meet the latents
that are kept of tokens, never the keys and values that a latent stands for."""

from __future__ import annotations

import numpy as np

from kvasir.core.kvtypes import KV_TYPES
from kvasir.ir.numerics import wide
from kvasir.ir.ops.attention import Seeing, attend, check_rope, rotate
from kvasir.ir.ops.base import BOTH, attrs_of, defines, f32, per_element
from kvasir.ir.ops.checks import require, require_heads, require_shape, width
from kvasir.ir.ops.rows import rms_norm
from kvasir.ir.ops.types import Arrays, Call, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import Op, TensorType

_ENTRY = attrs_of(layer=int, n_heads=int, n_kv_heads=int, head_dim=int)
_WRITE = _ENTRY | attrs_of(rotary_dim=int, style=str, table=str, eps=float)
_LATENT = _ENTRY | attrs_of(latent=int, scale=float, window=int)


def _entry_bytes(call: Call) -> float:
    """The latent of one token and its turned key."""
    return float(KV_TYPES[call.kv_dtype].head_bytes(call.op.integer("head_dim")))


def _head_linear_infer(op: Op, ins: Values, weights: Weights) -> Types:
    heads = op.integer("n_heads")
    require(len(weights[0].shape) == 3, f"{weights[0].name} is {weights[0].shape}, expected 3 axes")
    _, n, k = weights[0].shape
    require_shape(weights[0], (heads, n, k))
    require(
        width(ins[0]) == heads * k, f"{ins[0].name} is {width(ins[0])} wide, expected {heads}*{k}"
    )
    return (TensorType((ins[0].shape[0], heads * n)),)


@defines(
    BOTH,
    _head_linear_infer,
    n_weights=(1, 1),
    attrs=attrs_of(n_heads=int),
    flops=lambda call: 2.0 * call.rows(call.outs[0]) * call.weights[0].n_elements,
)
def head_linear(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """x W^T of each head with a matrix of its own: [T, heads * K] by [heads, N, K]."""
    x = wide(ins[0]).reshape(len(ins[0]), op.integer("n_heads"), -1)
    y = np.einsum("thk,hnk->thn", x, weights[0].astype(np.float64))
    return (f32(y.reshape(len(x), -1)),)


def _latent_write_infer(op: Op, ins: Values, weights: Weights) -> Types:
    heads, dim, rotary = op.integers("n_heads", "head_dim", "rotary_dim")
    require_heads(ins[0], 1, dim)
    require_heads(ins[1], heads, rotary)
    require(0 < rotary < dim, f"rotary_dim={rotary} of entries of {dim} numbers")
    check_rope(op, ins[2], dim)
    require_shape(weights[0], (dim - rotary,))
    return (ins[1].type,)


@defines(
    BOTH,
    _latent_write_infer,
    n_ins=(3, 3),
    n_weights=(1, 1),
    attrs=_WRITE,
    flops=per_element(3),
    extra_bytes=lambda call: _entry_bytes(call) * call.sizes.tokens,
)
def latent_write(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Of latent | key rows and the turned parts of queries: norms the latent, rotates key and
    queries, writes the entry (latent, then key), gives the queries."""
    heads, dim, rotary = op.integers("n_heads", "head_dim", "rotary_dim")
    table, style = env.constants[op.word("table")], op.word("style")
    latent, key = ins[0][:, : dim - rotary], ins[0][:, None, dim - rotary :]
    normed = f32(rms_norm(latent.astype(np.float64), weights[0], op.number("eps")))
    entry = np.concatenate([normed[:, None], rotate(key, ins[2], table, style)], axis=-1)
    env.write_kv(op.integer("layer"), entry, normed[:, None])
    q = rotate(ins[1].reshape(len(ins[1]), heads, rotary), ins[2], table, style)
    return (f32(q.reshape(ins[1].shape)),)


def _latent_flops(call: Call) -> float:
    numbers = call.op.integer("head_dim") + call.op.integer("latent")
    return 2.0 * call.sizes.attended * call.op.integer("n_heads") * numbers


def _latent_infer(op: Op, ins: Values, weights: Weights) -> Types:
    heads, dim, latent = op.integers("n_heads", "head_dim", "latent")
    require(0 < latent < dim, f"latent={latent} of entries of {dim} numbers")
    require(op.integer("n_kv_heads") == 1, f"n_kv_heads={op.integer('n_kv_heads')}, expected 1")
    require(op.integer("window") == 0, f"window={op.integer('window')}, expected 0")
    require(op.number("scale") > 0, f"scale={op.number('scale')}, expected more than 0")
    require_heads(ins[0], heads, latent)
    require_heads(ins[1], heads, dim - latent)
    return (ins[0].type,)


@defines(
    BOTH,
    _latent_infer,
    n_ins=(2, 2),
    attrs=_LATENT,
    flops=_latent_flops,
    extra_bytes=lambda call: _entry_bytes(call) * call.sizes.kv_entries,
)
def latent_attention(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """softmax(scale (q c + r k)) c over the entries (c, k) of a layer, which all heads share: of
    queries q [T, heads * latent] that key matrices have been absorbed into, and their turned parts
    r [T, heads * rope]. The latents c are keys and values alike."""
    heads, latent = op.integers("n_heads", "latent")
    q = np.concatenate([x.reshape(len(x), heads, -1) for x in ins], axis=-1)
    out = np.empty((len(q), heads, latent), np.float32)
    for token in range(len(q)):
        kv = env.view(op.integer("layer"), token)
        kv = kv._replace(v=kv.k[..., :latent])
        out[token] = attend(q[token], kv, int(kv.positions[-1]), Seeing(op.number("scale")))
    return (out.reshape(ins[0].shape),)


DEFS = (head_linear, latent_write, latent_attention)
