"""Rotary embedding, the KV cache and attention over it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvasir.core.kvtypes import KV_TYPES
from kvasir.ir.numerics import round_bf16
from kvasir.ir.ops.base import BOTH, LOWERED, RAW, attrs_of, defines, f32, per_element
from kvasir.ir.ops.checks import require, require_heads, require_shape, require_type, width
from kvasir.ir.ops.rows import as_type, rms_norm, soften, typed
from kvasir.ir.ops.types import Arrays, Call, Env, Inputs, KvView, Outputs, Types, Values, Weights
from kvasir.ir.program import FloatArray, Op, TensorType, Value

ROPE_STYLES = ("neox", "interleaved")
QK_NORMS = ("none", "heads", "width", "turned", "all")
"""Of each head, of all heads as one row, of each head after rope (with weights or without), or of
each head and, without a weight, of each value."""
_ROPE = attrs_of(n_heads=int, head_dim=int, rotary_dim=int, style=str, table=str)
_KV = attrs_of(layer=int, n_kv_heads=int, head_dim=int)
_ROPE_WRITE = _KV | _ROPE | attrs_of(q_table=str, qk_norm=str, eps=float)
_ROPE_HEADS = _ROPE | attrs_of(qk_norm=str, eps=float)
_ATTENTION = _KV | attrs_of(n_heads=int, scale=float, window=int, softcap=float, to=str, block=int)
_ATTENTION |= attrs_of(chunked=bool, slopes=str)


def _attention_flops(call: Call) -> float:
    pairs, window = call.sizes.attended, call.op.integer("window")
    pairs = min(pairs, call.sizes.tokens * window) if window else pairs
    return 4.0 * pairs * call.op.integer("n_heads") * call.op.integer("head_dim")


def _entry_bytes(call: Call) -> float:
    """K and V of one token."""
    head = KV_TYPES[call.kv_dtype].head_bytes(call.op.integer("head_dim"))
    return 2.0 * head * call.op.integer("n_kv_heads")


def rotate(
    x: FloatArray, at: NDArray[np.int32] | FloatArray, table: FloatArray, style: str
) -> FloatArray:
    """Rotary embedding (Su et al. 2021) of heads [T, n, head_dim].

    ``table`` [positions, rotary_dim] is cos | sin; ``at`` rows of it by number, or rows themselves.

    "neox" rotates the pairs (i, i + rotary_dim / 2), "interleaved" (2i, 2i + 1); the rest passes
    through, with a rotary_dim of 0 all of it.
    """
    half = table.shape[1] // 2
    angles = at if at.dtype == np.float32 else table[at]
    cos, sin = angles[:, None, :half], angles[:, None, half:]
    first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    if style == "neox":
        first, second = slice(0, half), slice(half, 2 * half)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def check_rope(op: Op, at: Value, head_dim: int) -> None:
    """``at``: positions of rows, or their angles."""
    rotary, style = op.integer("rotary_dim"), op.word("style")
    require(style in ROPE_STYLES, f"style={style!r}, expected one of {', '.join(ROPE_STYLES)}")
    require(
        rotary % 2 == 0 and 0 <= rotary <= head_dim, f"rotary_dim={rotary} with head_dim={head_dim}"
    )
    if at.dtype == "f32":
        require(width(at) == rotary, f"{at.name} is {at.shape}, expected {rotary} columns")
    else:
        require_type(at, "i32", rank=1)


def _rope_infer(op: Op, ins: Values, weights: Weights) -> Types:
    require_heads(ins[0], *op.integers("n_heads", "head_dim"))
    check_rope(op, ins[1], op.integer("head_dim"))
    return (ins[0].type,)


@defines(RAW, _rope_infer, n_ins=(2, 2), attrs=_ROPE, flops=per_element(3))
def rope(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Rotary embedding of the heads of each row."""
    x = ins[0].reshape(len(ins[0]), *op.integers("n_heads", "head_dim"))
    table = env.constants[op.word("table")]
    return (rotate(x, ins[1], table, op.word("style")).reshape(ins[0].shape),)


def _kv_write_infer(op: Op, ins: Values, weights: Weights) -> Types:
    for value in ins:
        require_heads(value, *op.integers("n_kv_heads", "head_dim"))
    return ()


@defines(
    RAW,
    _kv_write_infer,
    n_ins=(2, 2),
    attrs=_KV,
    extra_bytes=lambda call: _entry_bytes(call) * call.sizes.tokens,
)
def kv_write(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Keys and values of the step into the cache of a layer."""
    shape = (len(ins[0]), *op.integers("n_kv_heads", "head_dim"))
    env.write_kv(op.integer("layer"), ins[0].reshape(shape), ins[1].reshape(shape))
    return ()


def _rope_write_infer(op: Op, ins: Values, weights: Weights) -> Types:
    heads, kv_heads, dim = op.integers("n_heads", "n_kv_heads", "head_dim")
    kind = op.word("qk_norm")
    shares = kind == "all" and ins[0].shape[1] == (heads + kv_heads) * dim
    require_heads(ins[0], heads + (1 if shares else 2) * kv_heads, dim)
    check_rope(op, ins[1], dim)
    require(kind in QK_NORMS, f"qk_norm={kind!r}, expected one of {', '.join(QK_NORMS)}")
    expected = {"none": (0,), "turned": (0, 2)}.get(kind, (2,))
    require(len(weights) in expected, f"{len(weights)} weights with qk_norm={kind}")
    for weight, n_normed in zip(weights, (heads, kv_heads), strict=False):
        require_shape(weight, (n_normed * dim if kind == "width" else dim,))
    return (TensorType((ins[0].shape[0], heads * dim)),)


@defines(
    LOWERED,
    _rope_write_infer,
    n_ins=(2, 2),
    n_weights=(0, 2),
    attrs=_ROPE_WRITE,
    flops=per_element(3),
    extra_bytes=lambda call: _entry_bytes(call) * call.sizes.tokens,
)
def rope_write(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Splits q | k | v, norms and rotates q and k, writes k and v, gives q. Where values are normed
    rows may end with k, which are then v, too."""
    heads, kv_heads, dim = op.integers("n_heads", "n_kv_heads", "head_dim")
    x = ins[0].reshape(len(ins[0]), -1, dim)
    parts, tables = (x[:, :heads], x[:, heads : heads + kv_heads]), ("q_table", "table")
    turned = []
    norms = weights or [np.ones(dim, np.float32)] * 2
    for part, name, weight in zip(parts, tables, norms, strict=True):
        y, kind = part, op.word("qk_norm")
        if kind in ("heads", "width", "all"):
            y = _normed(y, weight, op)
        y = rotate(y, ins[1], env.constants[op.word(name)], op.word("style"))
        turned.append(_normed(y, weight, op) if kind == "turned" else y)
    v = x[:, -kv_heads:]
    if op.word("qk_norm") == "all":
        v = f32(rms_norm(v.astype(np.float64), 1.0, op.number("eps")))
    env.write_kv(op.integer("layer"), turned[1], v)
    return (turned[0].reshape(len(x), heads * dim),)


def _rope_heads_infer(op: Op, ins: Values, weights: Weights) -> Types:
    kind = op.word("qk_norm")
    require(kind in ("none", "heads"), f"qk_norm={kind!r}, expected none or heads")
    require(len(weights) == (kind == "heads"), f"{len(weights)} weights with qk_norm={kind}")
    for weight in weights:
        require_shape(weight, (op.integer("head_dim"),))
    return _rope_infer(op, ins, weights)


@defines(
    LOWERED,
    _rope_heads_infer,
    n_ins=(2, 2),
    n_weights=(0, 1),
    attrs=_ROPE_HEADS,
    flops=per_element(7),
)
def rope_heads(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Norms and rotates queries of a layer that reads what another one wrote."""
    x = ins[0].reshape(len(ins[0]), *op.integers("n_heads", "head_dim"))
    x = _normed(x, weights[0], op) if weights else x
    table = env.constants[op.word("table")]
    return (rotate(x, ins[1], table, op.word("style")).reshape(ins[0].shape),)


def _normed(x: FloatArray, weight: FloatArray, op: Op) -> FloatArray:
    """Heads [T, n, head_dim], each with its own RMS or all with that of the row."""
    rows = x.reshape(len(x), -1, len(weight)).astype(np.float64)
    return f32(rms_norm(rows, weight, op.number("eps"))).reshape(x.shape)


class Seeing(NamedTuple):
    """Which keys a token sees, and what a dot with one counts."""

    scale: float
    window: int = 0
    softcap: float = 0.0
    chunked: bool = False
    """Of a run of ``window`` positions those before it (Llama 4)."""


def attend(
    q: FloatArray,
    kv: KvView,
    position: int,
    rule: Seeing,
    sinks: FloatArray | None = None,
    slopes: FloatArray | None = None,
) -> FloatArray:
    """One token's heads [n_heads, head_dim]; consecutive query heads share a KV head. A sink is one
    more logit of its head's softmax, as of a key without a value (gpt-oss; Xiao et al. 2023).
    A score loses the slope of its head for each position between query and key (ALiBi; Press et
    al. 2022).

    The native kernels also round the probabilities that multiply V, relative to the largest score
    so far, where they round the query."""
    q = round_bf16(q) if kv.rounded else q
    keep = np.abs(kv.positions - position) < (rule.window or np.inf)
    keep &= kv.positions >= (position - position % rule.window if rule.chunked else 0)
    k, v = kv.k[keep].astype(np.float64), kv.v[keep].astype(np.float64)
    n_shared = len(q) // k.shape[1]
    scores = soften(
        rule.scale * np.einsum("hgd,nhd->hgn", q.reshape(k.shape[1], n_shared, -1), k), rule.softcap
    )
    if slopes is not None:
        far = np.abs(kv.positions[keep] - position)
        scores = scores - slopes.reshape(*scores.shape[:2], 1).astype(np.float64) * far
    top = scores.max(axis=-1, keepdims=True)
    extra = np.full(top.shape, -np.inf) if sinks is None else sinks.reshape(top.shape)
    top = np.maximum(top, extra)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True) + np.exp(extra - top)
    out = np.einsum("hgn,nhd->hgd", weights, v) / total
    return f32(out.reshape(len(q), -1))


def _attention_infer(op: Op, ins: Values, weights: Weights) -> Types:
    heads, kv_heads = op.integers("n_heads", "n_kv_heads")
    require(heads % kv_heads == 0, f"{heads} query heads do not share {kv_heads} KV heads evenly")
    require(op.number("scale") > 0, f"scale={op.number('scale')}, expected more than 0")
    fits = op.integer("window") > 0 and len(ins) == 1
    require(fits or not op.flag("chunked"), "chunks need a size, and see nothing behind a token")
    leans = "slopes" in op.attrs
    require(not leans or not op.number("softcap"), "slopes beside a soft cap")
    require_heads(ins[0], heads, op.integer("head_dim"))
    for sinks in weights:
        require_shape(sinks, (heads,))
    for ends in ins[1:]:
        require_type(ends, "i32", rank=1)
    return (typed(op, ins[0].shape, heads // kv_heads * op.integer("head_dim")),)


@defines(
    BOTH,
    _attention_infer,
    n_ins=(1, 2),
    n_weights=(0, 1),
    attrs=_ATTENTION,
    flops=_attention_flops,
    extra_bytes=lambda call: _entry_bytes(call) * call.sizes.kv_entries,
)
def attention(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """softmax(scale q k^T) v over the cache of a layer; with a weight, sinks of the heads. A token
    sees what comes before it and itself, or, with a second input, all positions before its end;
    where there is a window those that are less than it away; chunked, those of its own run of
    so many positions. ``slopes`` names those of the heads (ALiBi)."""
    q = ins[0].reshape(len(ins[0]), *op.integers("n_heads", "head_dim"))
    out = np.empty_like(q)
    window, cap = op.integer("window"), op.number("softcap")
    rule = Seeing(op.number("scale"), window, cap, op.flag("chunked"))
    sinks = weights[0] if weights else None
    slopes = env.constants[op.word("slopes")] if "slopes" in op.attrs else None
    for token in range(len(q)):
        kv = env.view(op.integer("layer"), token)
        position = int(kv.positions[-1])
        if len(ins) > 1 and (end := int(ins[1][token])) > position + 1:
            kv = env.view(op.integer("layer"), token, end)
        out[token] = attend(q[token], kv, position, rule, sinks, slopes)
    return (as_type(out.reshape(ins[0].shape), op.word("to"), op.integer("block")),)


DEFS = (rope, kv_write, rope_write, rope_heads, attention)
