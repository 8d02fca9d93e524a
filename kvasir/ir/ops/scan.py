"""linear_scan: recurrences over a matrix for each head, whose columns are independent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from kvasir.ir.ops.base import BOTH, attrs_of, defines
from kvasir.ir.ops.checks import require, require_shape, require_type, width
from kvasir.ir.ops.rows import sigmoid
from kvasir.ir.ops.types import Arrays, Call, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import STATE_ITEM_BYTES, FloatArray, Op, TensorType

MAX_STATE_DIM = 256
"""Of the native kernels, which keep 16 columns of a state in the first cache."""
RULES = ("ssd", "delta", "kda")
_SCAN = attrs_of(
    layer=int,
    rule=str,
    n_heads=int,
    head_dim=int,
    n_groups=int,
    state_dim=int,
    tiled=bool,
    least=float,
    most=float,
    eps=float,
)
Wide = NDArray[np.float64]


def scan_columns(n_heads: int, head_dim: int, n_groups: int, state_dim: int) -> int:
    """Of the rows that a scan reads: what each head adds, and two vectors of each group."""
    return n_heads * head_dim + 2 * n_groups * state_dim


def _sizes(op: Op) -> tuple[int, int, int, int]:
    n_heads, head_dim = op.integers("n_heads", "head_dim")
    return n_heads, head_dim, op.integer("n_groups"), op.integer("state_dim")


def _infer(op: Op, ins: Values, weights: Weights) -> Types:
    rule = op.word("rule")
    require(rule in RULES, f"rule={rule!r}, expected one of {', '.join(RULES)}")
    n_heads, head_dim, n_groups, state_dim = _sizes(op)
    groups = f"{n_heads} heads in {n_groups} groups"
    require(n_groups > 0 and n_heads % n_groups == 0, f"{groups}, expected equally many in each")
    fits = 0 < state_dim <= MAX_STATE_DIM
    require(fits, f"state_dim={state_dim}, expected 1 to {MAX_STATE_DIM}")
    require_type(ins[0], "f32")
    columns = scan_columns(*_sizes(op))
    found = f"{ins[0].name} has {width(ins[0])} columns"
    require(width(ins[0]) == columns, f"{found}, expected {columns}")
    n_ins, n_weights = (2, 3) if rule == "ssd" else (3, 2)
    both = (len(ins), len(weights))
    expected = f"{n_ins} inputs and {n_weights} weights"
    require(both == (n_ins, n_weights), f"{both[0]} inputs and {both[1]} weights, not {expected}")
    n_steps = n_heads * (state_dim if rule == "kda" else 1)
    for value, n in zip(ins[1:], (n_steps, n_heads), strict=False):
        require_type(value, "f32")
        require_shape(value, (ins[0].shape[0], n))
    for weight, n in zip(weights, (n_steps, n_heads, n_heads), strict=False):
        require_shape(weight, (n,))
    return (TensorType((ins[0].shape[0], n_heads * head_dim)),)


def _traffic(call: Call) -> float:
    """A state for each token, read and written, as in decodes."""
    n_heads, head_dim, _, state_dim = _sizes(call.op)
    return 2.0 * STATE_ITEM_BYTES * n_heads * head_dim * state_dim * call.sizes.tokens


def _flops(call: Call) -> float:
    """Decay, addition and output of each number of a state; with the delta rules what it holds of a
    key, too."""
    n_heads, head_dim, _, state_dim = _sizes(call.op)
    each = 5.0 if call.op.word("rule") == "ssd" else 7.0
    return each * n_heads * head_dim * state_dim * call.sizes.tokens


def softplus(x: Wide) -> Wide:
    """ln(1 + e^x)."""
    return np.logaddexp(0.0, x)


@defines(
    BOTH,
    _infer,
    n_ins=(2, 3),
    n_weights=(2, 3),
    attrs=_SCAN,
    flops=_flops,
    extra_bytes=_traffic,
)
def linear_scan(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """A state S [state_dim, head_dim] of each head, token after token, prompts too.

    "ssd" (Mamba-2; Dao & Gu 2024): rows are x of all heads | B of all groups | C of all groups, and
    dt; weights are the bias of dt, A and D. With d = softplus(dt + bias), between ``least`` and
    ``most``:  S = e^(d A) S + B (d x)^T,  y = S^T C + D x.

    "delta" (gated delta rule; Yang et al. 2024): rows are q of all groups | k of all groups | v of
    all heads, a, and b; weights are the bias of a, and A. q and k are divided by the root of the
    sum of their squares + ``eps``, q by the root of state_dim. With g = e^(A softplus(a + bias)):
    S' = g S,  S = S' + k (sigmoid(b) (v - S'^T k))^T,  y = S^T q.

    "kda" (Kimi Delta Attention; Kimi Team 2025): the same with a step a, its bias and so a decay g
    for each row of S, of each head:  S' = diag(g) S.

    Heads lie group by group, or with ``tiled`` those of a group are n_groups apart."""
    n_heads, head_dim, n_groups, state_dim = _sizes(op)
    steps = softplus(ins[1].astype(np.float64) + weights[0])
    if op.word("rule") == "ssd":
        steps = np.clip(steps, op.number("least"), op.number("most"))
    is_kda = op.word("rule") == "kda"
    steps = steps.reshape(len(steps), n_heads, state_dim if is_kda else 1)
    decays = np.exp(steps * weights[1][:, None])
    token = _TOKENS[op.word("rule")](op, ins, weights, steps[..., 0])
    order = (np.arange(n_heads) % n_groups) if op.flag("tiled") else None
    groups = np.repeat(np.arange(n_groups), n_heads // n_groups) if order is None else order
    out = np.empty((len(steps), n_heads * head_dim), np.float32)
    for t, decay in enumerate(decays):
        flat = env.state(op.integer("layer"), t)
        state = flat.reshape(n_heads, state_dim, head_dim).astype(np.float64)
        y, state = token(t, state * decay[:, :, None], groups)
        flat[:] = state.reshape(-1)
        out[t] = y.reshape(-1)
    return (out,)


Token = Callable[[int, Wide, NDArray[np.int64]], tuple[Wide, Wide]]
"""Of token t, a decayed state and the group of each head: the results, and the new state."""


def _ssd(op: Op, ins: Inputs, weights: Arrays, steps: Wide) -> Token:
    n_heads, head_dim, n_groups, _ = _sizes(op)
    inner = n_heads * head_dim
    x = ins[0][:, :inner].astype(np.float64).reshape(-1, n_heads, head_dim)
    b, c = _vectors(ins[0][:, inner:], n_groups)

    def token(t: int, state: Wide, groups: NDArray[np.int64]) -> tuple[Wide, Wide]:
        added = steps[t][:, None] * x[t]
        state = state + b[t][groups][:, :, None] * added[:, None, :]
        y = np.einsum("hnp,hn->hp", state, c[t][groups])
        return y + weights[2][:, None] * x[t], state

    return token


def _delta(op: Op, ins: Inputs, weights: Arrays, steps: Wide) -> Token:
    n_heads, head_dim, n_groups, state_dim = _sizes(op)
    both = 2 * n_groups * state_dim
    q, k = (_unit(x, op.number("eps")) for x in _vectors(ins[0][:, :both], n_groups))
    v = ins[0][:, both:].astype(np.float64).reshape(-1, n_heads, head_dim)
    share = sigmoid(ins[2].astype(np.float64))

    def token(t: int, state: Wide, groups: NDArray[np.int64]) -> tuple[Wide, Wide]:
        key, query = k[t][groups], q[t][groups] / state_dim**0.5
        held = np.einsum("hnp,hn->hp", state, key)
        change = share[t][:, None] * (v[t] - held)
        state = state + key[:, :, None] * change[:, None, :]
        return np.einsum("hnp,hn->hp", state, query), state

    return token


def _vectors(rows: FloatArray, n_groups: int) -> tuple[Wide, Wide]:
    """Two of each group and row, [T, groups, state_dim] each."""
    first, second = np.split(rows.astype(np.float64), 2, axis=1)
    shape = (len(rows), n_groups, -1)
    return first.reshape(shape), second.reshape(shape)


def _unit(x: Wide, eps: float) -> Wide:
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps))


_TOKENS: Mapping[str, Callable[[Op, Inputs, Arrays, Wide], Token]] = {
    "ssd": _ssd,
    "delta": _delta,
    "kda": _delta,
}
DEFS = (linear_scan,)
