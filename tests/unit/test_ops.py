"""Every op case: shape rule, cost, and the reference against loops written independently of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.testing import assert_allclose

from kvasir.ir.numerics import Q8
from kvasir.ir.ops import OPS, Call, Sizes
from kvasir.ir.program import FloatArray, Value
from tests import op_expected as known
from tests.op_cases import (
    LATENT_LAYER,
    OP_CASES,
    OWN_IDS,
    POSITIONS,
    SCAN_LAYER,
    TARGET_IDS,
    OpCase,
    R,
    T,
    dequantized,
    environment,
)

Expect = Callable[[OpCase], FloatArray]
BY_NAME = {case.name: case for case in OP_CASES}


def outputs(case: OpCase) -> tuple[Value, ...]:
    types = OPS[case.op.kind].infer(
        case.op, [v for v, _ in case.inputs], [w for w, _ in case.weights]
    )
    return tuple(Value(name, *type_) for name, type_ in zip(case.op.outs, types, strict=True))


def x_of(case: OpCase, index: int = 0) -> FloatArray:
    return dequantized(case.inputs[index][1])


def w_of(case: OpCase, index: int = 0) -> FloatArray:
    return case.weights[index][1]


def rms(x: FloatArray, w: FloatArray, eps: float) -> FloatArray:
    return np.array(
        [row / math.sqrt(sum(float(v) ** 2 for v in row) / len(row) + eps) * w for row in x]
    )


def expect_norm(case: OpCase) -> FloatArray:
    return rms(x_of(case), w_of(case), case.op.number("eps"))


def expect_layer_norm(case: OpCase) -> FloatArray:
    x = x_of(case)
    centred = np.array([row - sum(map(float, row)) / len(row) for row in x])
    y = rms(centred, w_of(case), case.op.number("eps"))
    return y + w_of(case, 1) if len(case.weights) == 2 else y


def expect_head_norm(case: OpCase) -> FloatArray:
    heads = x_of(case).reshape(-1, case.op.integer("head_dim"))
    weight = w_of(case) if case.weights else np.ones(heads.shape[1])
    return rms(heads, weight, case.op.number("eps")).reshape(T, -1)


def expect_linear(case: OpCase) -> FloatArray:
    op, n = case.op, case.op.integer("n_segments")
    parts = [x_of(case) @ w_of(case, i).T for i in range(n)]
    if op.flag("bias"):
        parts = [part + w_of(case, n + i) for i, part in enumerate(parts)]
    if op.word("epilogue") == "gated":
        return known.act_all(parts[0], op.word("act")) * parts[1]
    whole = np.hstack(parts)
    if op.word("epilogue") == "act":
        return known.act_all(whole, op.word("act"))
    return whole + x_of(case, 1) if op.word("epilogue") == "add" else whole


def turned(case: OpCase, heads: FloatArray, by: str = "table") -> FloatArray:
    """Complex multiplication of the pairs."""
    rotary, neox = case.op.integer("rotary_dim"), case.op.word("style") == "neox"
    table, (at, rows) = environment().constants[case.op.word(by)], case.inputs[-1]
    angles = table[POSITIONS] if at.dtype == "i32" else dequantized(rows)
    out = heads.copy()
    for t in range(T):
        for i in range(rotary // 2):
            a, b = (i, i + rotary // 2) if neox else (2 * i, 2 * i + 1)
            turn = complex(angles[t, i], angles[t, i + rotary // 2])
            z = (heads[t, :, a] + 1j * heads[t, :, b]) * turn
            out[t, :, a], out[t, :, b] = z.real, z.imag
    return out


def expect_rope(case: OpCase) -> FloatArray:
    return turned(case, x_of(case).reshape(T, 4, 16)).reshape(T, -1)


def expect_angles(case: OpCase) -> FloatArray:
    table, sections = environment().constants["rope16"], case.op.attrs["sections"]
    assert isinstance(sections, tuple)
    return known.angles_of(table, x_of(case), sections, case.op.flag("woven"))


def expect_rope_write(case: OpCase) -> FloatArray:
    q, kind = x_of(case)[:, :64].reshape(T, 4, 16), case.op.word("qk_norm")
    n = 64 if kind == "width" else 16
    if kind in ("heads", "width", "all"):
        q = rms(q.reshape(-1, n), w_of(case), 1e-6).reshape(q.shape)
    q = turned(case, q, "q_table")
    if kind == "turned":
        q = rms(q.reshape(-1, n), w_of(case) if case.weights else np.ones(n), 1e-6)
    return q.reshape(T, -1)


def expect_rope_heads(case: OpCase) -> FloatArray:
    q = x_of(case).reshape(T, 4, 16)
    q = rms(q.reshape(-1, 16), w_of(case), 1e-6).reshape(q.shape) if case.weights else q
    return turned(case, q).reshape(T, -1)


def expect_attention(case: OpCase) -> FloatArray:
    op = case.op
    heads, window, cap = op.integer("n_heads"), op.integer("window"), op.number("softcap")
    q, slopes = x_of(case).reshape(T, heads, 16), environment().constants["slopes"]
    out = np.zeros(q.shape)
    for t, position in enumerate(POSITIONS):
        view = environment().view(0, t)
        first = position - position % window if op.flag("chunked") else position - window + 1
        seen = range(max(first, 0) if window else 0, position + 1)
        for h in range(heads):
            kv = h // (heads // 2)
            scores = [op.number("scale") * float(q[t, h] @ view.k[p, kv]) for p in seen]
            scores = [cap * math.tanh(s / cap) if cap else s for s in scores]
            slope = slopes[h] if "slopes" in op.attrs else 0.0
            scores = [s - slope * (position - p) for s, p in zip(scores, seen, strict=True)]
            weights = [math.exp(s) for s in scores]
            mixed = sum(w * view.v[p, kv] for w, p in zip(weights, seen, strict=True))
            sink = math.exp(case.weights[0][1][h]) if case.weights else 0.0
            out[t, h] = mixed / (sum(weights) + sink)
    return out.reshape(T, -1)


def expect_latent_attention(case: OpCase) -> FloatArray:
    q, r = (x_of(case, i).reshape(T, 4, 8) for i in range(2))
    out = np.zeros(q.shape)
    for t, position in enumerate(POSITIONS):
        entries = environment().view(LATENT_LAYER, t).k[:, 0]
        seen = range(position + 1)
        for h in range(4):
            scores = [float(q[t, h] @ entries[p, :8] + r[t, h] @ entries[p, 8:]) for p in seen]
            weights = [math.exp(0.25 * s) for s in scores]
            mixed = sum(w * entries[p, :8] for w, p in zip(weights, seen, strict=True))
            out[t, h] = mixed / sum(weights)
    return out.reshape(T, -1)


def expect_expert_linear(case: OpCase) -> FloatArray:
    ids = x_of(case, 1).reshape(-1)
    x = x_of(case)
    found = []
    for pair, expert in enumerate(ids):
        row = x[pair] if case.op.flag("per_pair") else x[pair // 2]
        matrices = (w for _, w in case.weights if w.ndim == 3)
        parts = [matrix[expert] @ row for matrix in matrices]
        if case.op.flag("bias"):
            parts = [parts[0] + w_of(case, 1)[expert]]
        gated = case.op.word("epilogue") == "gated"
        found.append(known.act_all(parts[0], case.op.word("act")) * parts[1] if gated else parts[0])
    return np.array(found)


def expect_route(case: OpCase) -> FloatArray:
    """Ids: of all experts by logit, or of the best groups by sigmoid and bias."""
    k, n_groups = case.op.integers("top_k", "n_groups")
    if n_groups == 1:
        return np.argsort(-x_of(case), axis=1)[:, :k]
    choice, n = 1 / (1 + np.exp(-x_of(case))) + w_of(case), 1
    n += case.op.word("group_score") == "best_two"
    groups = choice.reshape(T, n_groups, -1)
    value = np.sort(groups, axis=2)[..., -n:].sum(axis=2)
    kept = np.argsort(-value, axis=1)[:, : case.op.integer("top_groups")]
    for t in range(T):
        others = [g for g in range(n_groups) if g not in kept[t]]
        groups[t, others] = -np.inf
    return np.argsort(-choice, axis=1)[:, :k]


def expect_experts(case: OpCase) -> FloatArray:
    if len(case.weights) > 3:
        return expect_biased_experts(case)
    out, act = np.zeros((T, 64)), case.op.word("act")
    all_shares = x_of(case, 2) if case.inputs[2:] else np.ones((T, 2))
    for t, (chosen, shares) in enumerate(zip(x_of(case, 1), all_shares, strict=True)):
        for rank, (expert, share) in enumerate(zip(chosen, shares, strict=True)):
            x = x_of(case)[t if len(x_of(case)) == T else 2 * t + rank]
            first, *up, down = (weight[expert] for _, weight in case.weights)
            h = known.act_all(first @ x, act)
            out[t] += share * (down @ (h * (up[0] @ x) if up else h))
    return out


def expect_biased_experts(case: OpCase) -> FloatArray:
    """With biases and the clamped SwiGLU of gpt-oss, a number at a time."""
    gates, ups, downs, *biases = (w_of(case, i) for i in range(6))
    out = np.zeros((T, 64))
    for t, (chosen, shares) in enumerate(zip(x_of(case, 1), x_of(case, 2), strict=True)):
        for e, share in zip(chosen, shares, strict=True):
            gate = [min(g, 7.0) for g in gates[e] @ x_of(case)[t] + biases[0][e]]
            up = [min(max(u, -7.0), 7.0) for u in ups[e] @ x_of(case)[t] + biases[1][e]]
            h = [g / (1 + math.exp(-1.702 * g)) * (u + 1) for g, u in zip(gate, up, strict=True)]
            out[t] += share * (downs[e] @ np.array(h) + biases[2][e])
    return out


def expect_combine(case: OpCase) -> FloatArray:
    y, shares = x_of(case), x_of(case, 1)
    shares = np.ones((T, 2)) if case.name == "combine-sums" else shares
    return np.array([shares[t, 0] * y[2 * t] + shares[t, 1] * y[2 * t + 1] for t in range(T)])


def expect_softcap(case: OpCase) -> FloatArray:
    x, cap = x_of(case) * case.op.number("factor"), case.op.number("softcap")
    return cap * np.tanh(x / cap) if cap else x


def expect_short_conv(case: OpCase) -> FloatArray:
    """A channel at a time, over all its products: those of the state, then those of the step."""
    out, state = np.zeros((T, 9)), environment().state(0, 0).reshape(2, 9)
    rows, gated = x_of(case), case.op.flag("gated")
    if not gated:
        rows = np.hstack([np.ones((T, 18)), rows])
    for channel in range(9):
        b, c, x = (rows[:, part * 9 + channel] for part in range(3))
        products = [*state[:, channel], *(b * x)]
        for t in range(T):
            out[t, channel] = c[t] * (w_of(case)[:, channel] @ products[t : t + 3])
    if gated:
        return out
    return known.act_all(out + (w_of(case, 1) if case.weights[1:] else 0), "silu")


def expect_linear_scan(case: OpCase) -> FloatArray:
    """A head and a token at a time, as the papers write it."""
    state = environment().state(SCAN_LAYER, 0).reshape(4, 5, 3).astype(np.float64)
    rule, out = case.op.word("rule"), np.zeros((T, 4, 3))
    is_ssd, n = rule == "ssd", 5 if rule == "kda" else 1
    for head, s in enumerate(state):
        group = head % 2 if case.op.flag("tiled") else head // 2
        for t in range(T):
            steps = slice(n * head, n * head + n)
            step = np.log1p(np.exp(x_of(case, 1)[t, steps] + w_of(case)[steps]))
            step = np.clip(step, 0.2, 1.1) if is_ssd else step
            s = np.exp(step * w_of(case, 1)[head])[:, None] * s
            own = x_of(case)[t]
            if is_ssd:
                x, b, c = own[3 * head :][:3], own[12 + 5 * group :][:5], own[22 + 5 * group :][:5]
                s = s + np.outer(b, step * x)
                out[t, head] = c @ s + w_of(case, 2)[head] * x
                continue
            q, k, v = own[5 * group :][:5], own[10 + 5 * group :][:5], own[20 + 3 * head :][:3]
            q, k = (vector / np.sqrt(vector @ vector + 1e-6) for vector in (q, k))
            s = s + np.outer(k, (v - k @ s) / (1 + np.exp(-x_of(case, 2)[t, head])))
            out[t, head] = q @ s / np.sqrt(5)
    return out.reshape(T, 12)


EXPECT: Mapping[str, Expect] = {
    "embed": lambda case: np.array([1.5 * w_of(case)[i] for i in x_of(case)]),
    "norm": expect_norm,
    "layer_norm": expect_layer_norm,
    "head_norm": expect_head_norm,
    "cast": x_of,
    "gated_act": lambda case: known.act_all(x_of(case), case.op.word("act")) * x_of(case, 1),
    "act": lambda case: known.act_all(x_of(case), case.op.word("act")),
    "add": lambda case: x_of(case) + x_of(case, 1),
    "scale": expect_softcap,
    "merge_embeds": lambda case: known.given_rows(x_of(case), x_of(case, 1), 0),
    "add_embeds": lambda case: known.given_rows(x_of(case), x_of(case, 1), 1),
    "angles": expect_angles,
    "between": lambda case: np.array(
        [share @ w_of(case)[at] for at, share in zip(x_of(case), x_of(case, 1), strict=True)]
    ),
    "rename_tokens": lambda case: np.array([OWN_IDS[int(i)] for i in x_of(case)]),
    "place_logits": lambda case: known.logits_at(x_of(case), TARGET_IDS, 7),
    "join_columns": lambda case: np.hstack([x_of(case, i) for i in range(len(case.inputs))]),
    "take_columns": lambda case: x_of(case)[:, 7:16],
    "mix_streams": lambda case: known.mixed(x_of(case), x_of(case, 1)),
    "correct_streams": lambda case: known.corrected(*(x_of(case, i) for i in range(3))),
    "add_to_streams": lambda case: x_of(case) + np.hstack([i * x_of(case, 1) for i in (0, 1, 1)]),
    "match_rows": lambda case: known.matched(x_of(case), x_of(case, 1), case.op.number("eps")),
    "sparse_gate": lambda case: known.sparse(x_of(case), x_of(case, 1), case.op.word("act")),
    "gate_rows": lambda case: x_of(case) / (1 + np.exp(-x_of(case, 1))),
    "pool": lambda case: np.array([x_of(case)[: i + 1].mean(axis=0) for i in range(R)]),
    "short_conv": expect_short_conv,
    "linear_scan": expect_linear_scan,
    "gather_rows": lambda case: np.array([x_of(case)[i] for i in x_of(case, 1)]),
    "linear": expect_linear,
    "lm_head": lambda case: x_of(case) @ w_of(case).T + (w_of(case, 1) if case.weights[1:] else 0),
    "sample": lambda case: np.array([max(range(50), key=lambda i: row[i]) for row in x_of(case)]),
    "rope": expect_rope,
    "rope_write": expect_rope_write,
    "rope_heads": expect_rope_heads,
    "attention": expect_attention,
    "mul_columns": lambda case: x_of(case) * x_of(case, 1)[:, 7:16],
    "gather_columns": lambda case: np.array([row[w_of(case).astype(int)] for row in x_of(case)]),
    "weigh": lambda case: np.array([row * w_of(case) for row in x_of(case)]),
    "weigh_experts": lambda case: x_of(case) * w_of(case)[x_of(case, 1).astype(int)],
    "head_linear": lambda case: np.hstack(
        [x @ w.T for x, w in zip(np.split(x_of(case), 4, axis=1), w_of(case), strict=True)]
    ),
    "latent_write": lambda case: turned(case, x_of(case, 1).reshape(T, 4, 8)).reshape(T, -1),
    "latent_attention": expect_latent_attention,
    "route": expect_route,
    "experts": expect_experts,
    "expert_linear": expect_expert_linear,
    "combine": expect_combine,
    "gather_pairs": lambda case: known.gathered(x_of(case), x_of(case, 1), w_of(case)),
    "spread": lambda case: np.repeat(x_of(case), 2, axis=0) * x_of(case, 1).reshape(-1, 1),
}


@pytest.mark.parametrize("name", [name for name, case in BY_NAME.items() if case.op.outs])
def test_reference(name: str) -> None:
    case = BY_NAME[name]
    out = case.run(environment())[0]
    step = {"bf16": 2.0**-8, "q8": 1 / 254}.get(outputs(case)[0].dtype, 0.0)
    expected = EXPECT[case.op.kind](case)
    bound = step * np.abs(expected[np.isfinite(expected)]).max() * 1.01
    assert_allclose(dequantized(out), expected, rtol=2e-5, atol=bound + 2e-5)


@pytest.mark.parametrize("case", OP_CASES, ids=BY_NAME)
def test_shape_rule_agrees_with_reference(case: OpCase) -> None:
    symbols = {"T": T, "R": R, "P": 2 * T}
    for value, out in zip(outputs(case), case.run(environment()), strict=True):
        shape = tuple(symbols[dim] if isinstance(dim, str) else dim for dim in value.shape)
        data = out.data if isinstance(out, Q8) else out
        kinds = {"f32": "f4", "bf16": "f4", "i32": "i4", "q8": "i1"}
        assert (data.shape, data.dtype) == (shape, np.dtype(kinds[value.dtype]))
        if isinstance(out, Q8):
            rows, k = shape
            assert out.scales.shape == (rows, k // value.block)
            assert out.sums.shape == (rows, k // 32, 2)


@pytest.mark.parametrize("case", OP_CASES, ids=BY_NAME)
def test_cost_grows_with_the_step(case: OpCase) -> None:
    values = tuple(value for value, _ in case.inputs)
    weights = tuple(weight for weight, _ in case.weights)
    definition = OPS[case.op.kind]

    def flops(sizes: Sizes) -> float:
        call = Call(case.op, values, outputs(case), weights, sizes)
        assert 0 < definition.weight_share(call) <= 1
        return definition.flops(call) + definition.extra_bytes(call)

    small, large = flops(Sizes(2, 1, 20, 10)), flops(Sizes(4, 2, 40, 20))
    assert large == 2 * small


def test_every_kind_has_a_case() -> None:
    assert {case.op.kind for case in OP_CASES} == OPS.keys()


@pytest.mark.parametrize(
    "name", ["kv-write", *(f"rope-write-neox-16-{x}" for x in ("none", "heads", "width"))]
)
def test_writes_reach_the_cache(name: str) -> None:
    case, env = BY_NAME[name], environment()
    case.run(env)
    k, v = env.written[case.op.integer("layer")]
    if case.op.kind == "kv_write":
        assert_allclose(k.reshape(T, -1), x_of(case))
        assert_allclose(v.reshape(T, -1), x_of(case, 1))
        return
    heads = x_of(case).reshape(T, 8, 16)
    keys = heads[:, 4:6]
    if case.weights:
        n = 32 if case.op.word("qk_norm") == "width" else 16
        keys = rms(keys.reshape(-1, n), w_of(case, 1), 1e-6).reshape(keys.shape)
    assert_allclose(k, turned(case, keys), rtol=1e-5, atol=1e-5)
    assert_allclose(v, heads[:, 6:])


def test_linear_with_int8_activations_is_exact_in_integers() -> None:
    """The integer path: sum of scale * d * integer products, to the last bit of float64."""
    case = BY_NAME["linear-q8"]
    q = case.inputs[0][1]
    assert isinstance(q, Q8)
    block = q.data.shape[1] // q.scales.shape[1]
    wide = q.data.astype(np.float64) * np.repeat(q.scales, block, axis=1)
    (out,) = case.run(environment())
    assert_allclose(out, (wide @ w_of(case).T.astype(np.float64)).astype(np.float32), rtol=1e-7)
