"""One list of op cases: small, awkward sizes of every op, with inputs and weights from counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvasir.ir.numerics import Q8, act_block, quantize_rows, round_bf16
from kvasir.ir.ops import OPS, KvView, Rows
from kvasir.ir.program import Attr, Dim, FloatArray, Op, Value, Weight, freeze
from tests.tiny import uniform

T, R = 5, 3
POSITIONS = np.array([0, 1, 7, 7, 30], np.int32)
TABLE_ROWS = 32
STATE_SIZE = 18
"""Of two products of each of nine channels."""
OWN_IDS, TARGET_IDS = (2, 0, 1, 3), (3, -1, 0, 6, 1)
"""Of the tokens of a target those of a draft model, and the other way round."""
SCAN_LAYER, SCAN_SIZE = 4, 4 * 5 * 3
LATENT_LAYER = 3
"""Of one KV head."""


@dataclass(frozen=True, slots=True)
class OpCase:
    """``inputs`` and ``weights`` are in the order of the op's operands."""

    name: str
    op: Op
    inputs: tuple[tuple[Value, Rows], ...]
    weights: tuple[tuple[Weight, FloatArray], ...]

    def run(self, env: CaseEnv) -> tuple[Rows, ...]:
        """What the op's reference gives."""
        arrays = [rows for _, rows in self.inputs]
        return OPS[self.op.kind].reference(self.op, arrays, [w for _, w in self.weights], env)


@dataclass(slots=True)
class CaseEnv:
    """Tokens see the random entries up to their position; keeps what is written."""

    constants: Mapping[str, FloatArray]
    written: dict[int, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    n_kv_heads: int = 2
    head_dim: int = 16
    states: dict[int, FloatArray] = field(default_factory=dict)

    def write_kv(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        self.written[layer] = (k, v)

    def view(self, layer: int, token: int, end: int = 0) -> KvView:
        n = end or int(POSITIONS[token]) + 1
        heads = 1 if layer == LATENT_LAYER else self.n_kv_heads
        shape = (TABLE_ROWS, heads, self.head_dim)
        k, v = uniform("case/k", shape, 1.0), uniform("case/v", shape, 1.0)
        return KvView(np.arange(n, dtype=np.int64), k[:n], v[:n])

    def state(self, layer: int, token: int) -> FloatArray:
        """Of one sequence, some tokens of which are before the step."""
        if layer not in self.states:
            size = SCAN_SIZE if layer == SCAN_LAYER else STATE_SIZE
            self.states[layer] = uniform("case/state", (size,), 1.0)
        return self.states[layer]

    def sample(self, logits: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return logits.argmax(axis=1).astype(np.int32)

    def pool(self, rows: FloatArray) -> FloatArray:
        """Of one request."""
        sums = rows.astype(np.float64).cumsum(axis=0)
        return (sums / np.arange(1, len(rows) + 1)[:, None]).astype(np.float32)


def rows(name: str, n: Dim, k: int, dtype: str = "f32") -> tuple[Value, Rows]:
    """Random rows; n is a number or "T", "R", "P" (2 T pairs)."""
    count = {"T": T, "R": R, "P": 2 * T}[n] if isinstance(n, str) else n
    x = uniform(f"case/{name}/{k}", (count, k), 2.0)
    block = act_block(k) if dtype == "q8" else 0
    data: Rows = quantize_rows(x, block) if dtype == "q8" else x
    if dtype == "bf16":
        data = round_bf16(x)
    return Value(name, (n, k), dtype, block), data


def ids(name: str, values: Sequence[Sequence[int]] | Sequence[int], n: Dim) -> tuple[Value, Rows]:
    array = np.array(values, np.int32)
    return Value(name, (n, *array.shape[1:]), "i32"), array


def weight(name: str, *shape: int) -> tuple[Weight, FloatArray]:
    return Weight(name, shape), uniform(f"case/w/{name}", shape, 1.0)


def case(
    name: str,
    kind: str,
    inputs: Sequence[tuple[Value, Rows]],
    weights: Sequence[tuple[Weight, FloatArray]] = (),
    n_outs: int = 1,
    **attrs: Attr,
) -> OpCase:
    ins = tuple(value.name for value, _ in inputs)
    outs = tuple(f"y{i}" for i in range(n_outs))
    op = Op(kind, ins, outs, tuple(w.name for w, _ in weights), freeze(attrs))
    return OpCase(name, op, tuple(inputs), tuple(weights))


def environment() -> CaseEnv:
    """Tables for head sizes 16 (full) and 8 (partial rotary)."""
    names = {f"{of}rope{n}": n for of in ("", "q_") for n in (8, 16)}
    tables = {x: uniform(f"case/{x}", (TABLE_ROWS, n), 1.0) for x, n in names.items()}
    named = {"own_ids": OWN_IDS, "target_ids": TARGET_IDS}
    tables["slopes"] = uniform("case/slopes", (4,), 0.3, 0.4)
    return CaseEnv(tables | {x: np.array(each, np.float32) for x, each in named.items()})


def _stream_cases() -> Iterator[OpCase]:
    x, own = rows("x", "T", 27), rows("own", "T", 9)
    yield case("take-columns", "take_columns", [x], column=7, width=9)
    shares = rows("shares", "T", 9)
    yield case("mix-streams", "mix_streams", [x, shares], width=9)
    each = [x, own, rows("shares", "T", 3)]
    yield case("correct-streams", "correct_streams", each, width=9, active=1)
    yield case("add-to-streams", "add_to_streams", [x, own], width=9, first=1)
    other = rows("other", "T", 9)
    yield case("match-rows", "match_rows", [own, other], eps=1e-5)
    yield case("match-rows-small", "match_rows", [own, other], eps=50.0)
    for act in ("silu", "gelu_tanh", "gelu"):
        attrs: dict[str, Attr] = {"deviations": 0.4, "act": act}
        yield case(f"sparse-{act}", "sparse_gate", [own, other], **attrs)


def _row_cases() -> Iterator[OpCase]:
    for to, k in (("f32", 33), ("bf16", 34), ("q8", 96), ("q8", 512)):
        block = act_block(k) if to == "q8" else 0
        x = rows("x", "T", k)
        yield case(f"norm-{to}-{k}", "norm", [x], [weight("w", k)], eps=1e-5, to=to, block=block)
        both = [weight("w", k), weight("b", k)]
        given: dict[str, Attr] = {"eps": 1e-5, "to": to, "block": block}
        yield case(f"layer-norm-{to}-{k}", "layer_norm", [x], both, **given)
        yield case(f"layer-norm-{to}-{k}-plain", "layer_norm", [x], both[:1], **given)
        yield case(f"cast-{to}-{k}", "cast", [x], to=to, block=block)
    yield case(
        "norm-r", "norm", [rows("x", "R", 64)], [weight("w", 64)], eps=1e-6, to="f32", block=0
    )
    heads = {"n_heads": 4, "head_dim": 16}
    yield case("head-norm", "head_norm", [rows("x", "T", 64)], [weight("w", 16)], **heads, eps=1e-6)
    yield case("head-norm-plain", "head_norm", [rows("x", "T", 64)], **heads, eps=1e-6)
    yield case("mul-columns", "mul_columns", [rows("x", "T", 9), rows("y", "T", 20)], column=7)
    yield case("weigh", "weigh", [rows("x", "T", 9)], [weight("w", 9)])
    order = (Weight("order", (9,)), np.array([3, 0, 8, 1, 7, 2, 6, 5, 4], np.float32))
    yield case("gather-columns", "gather_columns", [rows("x", "T", 9)], [order])
    for act in ("silu", "gelu_tanh", "gelu"):
        yield case(f"gated-{act}", "gated_act", [rows("a", "T", 7), rows("b", "T", 7)], act=act)
        yield case(f"act-{act}", "act", [rows("a", "T", 7)], act=act)
    yield case("act-relu2", "act", [rows("a", "T", 7)], act="relu2")
    yield case("add", "add", [rows("a", "T", 9), rows("b", "T", 9)])
    yield case("scale", "scale", [rows("x", "T", 9)], factor=0.3, softcap=0.0)
    yield from _stream_cases()
    yield case("gate-rows", "gate_rows", [rows("x", "T", 9), rows("g", "T", 1)])
    yield case("softcap", "scale", [rows("x", "R", 9)], factor=3.0, softcap=1.5)
    yield case("pool", "pool", [rows("x", "R", 9)])
    taps = weight("w", 3, 9)
    conv: dict[str, Attr] = {"layer": 0, "n_taps": 3}
    yield case("short-conv", "short_conv", [rows("bcx", "T", 27)], [taps], **conv, gated=True)
    x = rows("x", "T", 9)
    yield case("short-conv-silu", "short_conv", [x], [taps], **conv, gated=False)
    both = [taps, weight("b", 9)]
    yield case("short-conv-bias", "short_conv", [x], both, **conv, gated=False)
    yield case("gather", "gather_rows", [rows("x", "T", 9), ids("r", [4, 0, 2], "R")])
    both, which = [rows("x", "T", 9), rows("m", "T", 9)], ids("is", [0, 1, 0, 0, 1], "T")
    yield case("merge-embeds", "merge_embeds", [*both, which])
    yield case("add-embeds", "add_embeds", [*both, which])


def _linear_cases() -> Iterator[OpCase]:
    plain: dict[str, Attr] = {"n_segments": 1, "bias": False, "epilogue": "none", "act": "none"}
    plain |= {"to": "f32", "block": 0}
    yield case(
        "embed", "embed", [ids("t", [0, 3, 3, 39, 7], "T")], [weight("w", 40, 33)], scale=1.5
    )
    for dtype in ("f32", "bf16", "q8"):
        x = rows("x", "T", 96, dtype)
        yield case(f"linear-{dtype}", "linear", [x], [weight("w", 17, 96)], **plain)
        parts = [weight("q", 32, 96), weight("k", 16, 96), weight("v", 16, 96)]
        yield case(f"linear-3-{dtype}", "linear", [x], parts, **plain | {"n_segments": 3})
        residual = rows("r", "T", 17)
        attrs = plain | {"epilogue": "add"}
        yield case(f"linear-add-{dtype}", "linear", [x, residual], [weight("w", 17, 96)], **attrs)
        gated = plain | {"n_segments": 2, "epilogue": "gated", "act": "silu"}
        pair = [weight("g", 48, 96), weight("u", 48, 96)]
        yield case(f"linear-gated-{dtype}", "linear", [x], pair, **gated)
        pair = [weight("g", 96, 96), weight("u", 96, 96)]
        for to, block in (("bf16", 0), ("q8", 32), ("q8", 96)):
            attrs = gated | {"to": to, "block": block}
            yield case(f"linear-gated-{dtype}-{to}-{block}", "linear", [x], pair, **attrs)
            attrs = attrs | {"n_segments": 1, "epilogue": "act", "act": "gelu"}
            yield case(f"linear-act-{dtype}-{to}-{block}", "linear", [x], pair[:1], **attrs)
        yield case(
            f"lm-head-{dtype}", "lm_head", [rows("x", "R", 96, dtype)], [weight("w", 50, 96)]
        )
    biased = [weight("a", 3, 64), weight("b", 5, 64), weight("a.bias", 3), weight("b.bias", 5)]
    attrs = plain | {"n_segments": 2, "bias": True}
    yield case("linear-bias", "linear", [rows("x", "T", 64)], biased, **attrs)
    attrs = plain | {"bias": True, "epilogue": "act", "act": "gelu_tanh"}
    yield case("linear-bias-act", "linear", [rows("x", "T", 64)], [biased[0], biased[2]], **attrs)
    head = [weight("w", 50, 64), weight("w.bias", 50)]
    yield case("lm-head-bias", "lm_head", [rows("x", "R", 64)], head)
    yield case("sample", "sample", [rows("x", "R", 50)])


def _place_cases() -> Iterator[OpCase]:
    at = ids("at", [[0, 0, 0], [3, 4, 9], [3, 5, 8], [31, 0, 7], [12, 12, 12]], "T")
    table: dict[str, Attr] = {"table": "rope16", "rotary_dim": 16}
    for sections, woven in (((2, 3, 3), False), ((0, 4, 4), False), ((4, 2, 2), True)):
        name = f"angles-{sections}-{woven}"
        yield case(name, "angles", [at], **table, sections=sections, woven=woven)
    corners = ids("corners", [[0, 1, 3, 4], [1, 1, 4, 4], [5, 6, 8, 9], [9] * 4, [0] * 4], "T")
    shares = rows("shares", "T", 4)
    yield case("between", "between", [corners, shares], [weight("w", 10, 9)])


def _vocabulary_cases() -> Iterator[OpCase]:
    tokens = ids("tokens", [0, 3, 1, 2, 3], "T")
    yield case("rename-tokens", "rename_tokens", [tokens], ids="own_ids")
    yield case("place-logits", "place_logits", [rows("x", "R", 5)], ids="target_ids", n_tokens=7)
    for n in (2, 3):
        parts = [rows(f"x{i}", "T", 9 + i) for i in range(n)]
        yield case(f"join-columns-{n}", "join_columns", parts)


def _attention_cases() -> Iterator[OpCase]:
    positions = ids("positions", POSITIONS.tolist(), "T")
    for style in ("neox", "interleaved"):
        for rotary in (8, 16):
            rope: dict[str, Attr] = {"rotary_dim": rotary, "style": style, "table": f"rope{rotary}"}
            sizes: dict[str, Attr] = {"n_heads": 4, "head_dim": 16}
            x = rows("x", "T", 64)
            yield case(f"rope-{style}-{rotary}", "rope", [x, positions], **sizes, **rope)
            by_token = rows("angles", "T", rotary)
            name = f"rope-{style}-{rotary}-angles"
            yield case(name, "rope", [x, by_token], **sizes, **rope)
            for kind, *widths in (
                ("none",),
                ("heads", 16, 16),
                ("width", 64, 32),
                ("turned", 16, 16),
                ("turned",),
            ):
                bare = "-bare" * (kind == "turned" and not widths)
                name = f"rope-write-{style}-{rotary}-{kind}{bare}"
                norms = [weight(f"norm{i}", n) for i, n in enumerate(widths)]
                more: dict[str, Attr] = {"layer": 1, "n_kv_heads": 2, "qk_norm": kind, "eps": 1e-6}
                more["q_table"] = f"q_rope{rotary}"
                qkv = rows("qkv", "T", 128)
                yield case(name, "rope_write", [qkv, positions], norms, **sizes, **rope, **more)
            more = {"layer": 1, "n_kv_heads": 2, "qk_norm": "all", "eps": 1e-6}
            more["q_table"] = f"q_rope{rotary}"
            norms = [weight("norm0", 16), weight("norm1", 16)]
            for n in (96, 128):
                name, qkv = f"rope-write-{style}-{rotary}-all-{n}", rows("qkv", "T", n)
                yield case(name, "rope_write", [qkv, positions], norms, **sizes, **rope, **more)
            for kind, n in (("none", 0), ("heads", 1)):
                name, more = f"rope-heads-{style}-{rotary}-{kind}", {"qk_norm": kind, "eps": 1e-6}
                yield case(name, "rope_heads", [x, positions], norms[:n], **sizes, **rope, **more)
    kv: dict[str, Attr] = {"layer": 0, "n_kv_heads": 2, "head_dim": 16}
    yield case("kv-write", "kv_write", [rows("k", "T", 32), rows("v", "T", 32)], n_outs=0, **kv)
    for name, n_heads, window, softcap in (
        ("full", 4, 0, 0.0),
        ("one-per-group", 2, 0, 0.0),
        ("window", 6, 5, 0.0),
        ("window-of-one", 4, 1, 0.0),
        ("softcap", 4, 0, 1.5),
        ("chunks", 4, 3, 0.0),
    ):
        attrs = kv | {"n_heads": n_heads, "scale": 0.25, "window": window, "softcap": softcap}
        attrs |= {"chunked": name == "chunks"}
        attrs |= {"to": "f32", "block": 0}
        yield case(f"attention-{name}", "attention", [rows("q", "T", 16 * n_heads)], **attrs)
    attrs = kv | {"n_heads": 4, "scale": 0.25, "window": 0, "softcap": 0.0, "chunked": False}
    leans = attrs | {"slopes": "slopes", "to": "f32", "block": 0}
    yield case("attention-alibi", "attention", [rows("q", "T", 64)], **leans)
    q, sinks = rows("q", "T", 64), weight("sinks", 4)
    for to, block in (("f32", 0), ("bf16", 0), ("q8", 32)):
        typed = attrs | {"to": to, "block": block}
        yield case(f"attention-sinks-{to}", "attention", [q], [sinks], **typed)


def _latent_cases() -> Iterator[OpCase]:
    positions = ids("positions", POSITIONS.tolist(), "T")
    entry: dict[str, Attr] = {"layer": LATENT_LAYER, "n_heads": 4, "n_kv_heads": 1, "head_dim": 16}
    for dtype in ("f32", "bf16"):
        x, matrices = rows("x", "T", 4 * 24, dtype), weight("heads", 4, 20, 24)
        yield case(f"head-linear-{dtype}", "head_linear", [x], [matrices], n_heads=4)
    both = [rows("x", "T", 16), rows("q", "T", 32), positions]
    for style in ("neox", "interleaved"):
        rope: dict[str, Attr] = {"rotary_dim": 8, "style": style, "table": "rope8", "eps": 1e-6}
        norm = [weight("norm", 8)]
        yield case(f"latent-write-{style}", "latent_write", both, norm, **entry, **rope)
    attrs = entry | {"latent": 8, "scale": 0.25, "window": 0}
    queries = [rows("q", "T", 32), rows("r", "T", 32)]
    yield case("latent-attention", "latent_attention", queries, **attrs)


def _scan_cases() -> Iterator[OpCase]:
    """Four heads of three columns, in two groups of vectors of five."""
    sizes: dict[str, Attr] = {"layer": SCAN_LAYER, "n_heads": 4, "head_dim": 3, "n_groups": 2}
    sizes |= {"state_dim": 5, "tiled": False}
    x, a, b = rows("x", "T", 32), rows("a", "T", 4), rows("b", "T", 4)
    heads = [weight("bias", 4), negative("rate", 4), weight("skip", 4)]
    ssd = sizes | {"rule": "ssd", "least": 0.2, "most": 1.1, "eps": 0.0}
    delta = sizes | {"rule": "delta", "least": 0.0, "most": 0.0, "eps": 1e-6}
    for name, tiled in (("", False), ("-tiled", True)):
        yield case(f"scan-ssd{name}", "linear_scan", [x, a], heads, **ssd | {"tiled": tiled})
        attrs = delta | {"tiled": tiled}
        yield case(f"scan-delta{name}", "linear_scan", [x, a, b], heads[:2], **attrs)
    steps, kda = rows("each", "T", 20), delta | {"rule": "kda"}
    each = [weight("biases", 20), heads[1]]
    yield case("scan-kda", "linear_scan", [x, steps, b], each, **kda)


def negative(name: str, *shape: int) -> tuple[Weight, FloatArray]:
    return Weight(name, shape), -np.exp(uniform(f"case/w/{name}", shape, 1.0))


def _expert_cases() -> Iterator[OpCase]:
    chosen = ids("ids", [[0, 3], [3, 1], [2, 0], [1, 0], [3, 2]], "T")
    shares = rows("shares", "T", 2)
    late = routing(n_experts=4, top_k=2, score="late_sigmoid", normalize=False)
    yield case("route-late", "route", [rows("x", "T", 4)], n_outs=2, **late)
    for top_k, normalize in ((1, False), (2, True), (4, True)):
        attrs = routing(n_experts=4, top_k=top_k, normalize=normalize)
        yield case(f"route-{top_k}", "route", [rows("x", "T", 4)], n_outs=2, **attrs)
    yield case("weigh-experts", "weigh_experts", [shares, chosen], [weight("w", 4)])
    grouped = routing(n_experts=12, top_k=3, score="sigmoid", n_groups=4, top_groups=2, scale=2.5)
    for rule in ("best", "best_two"):
        attrs, x, bias = {**grouped, "group_score": rule}, rows("x", "T", 12), weight("b", 12)
        yield case(f"route-{rule}", "route", [x], [bias], n_outs=2, **attrs)
    gate, up, down = weight("g", 4, 48, 64), weight("u", 4, 48, 64), weight("d", 4, 64, 48)
    x = rows("x", "T", 64)
    biases = [weight("gb", 4, 48), weight("ub", 4, 48), weight("db", 4, 64)]
    for name, act, more in (("experts", "silu", []), ("experts-bias", "clamped_swiglu", biases)):
        weights = [gate, up, down, *more]
        yield case(name, "experts", [x, chosen, shares], weights, top_k=2, act=act)
    yield case("spread", "spread", [x, shares], top_k=2)
    places = np.argsort(uniform("case/places", (4, 64), 1.0), axis=1).astype(np.float32)
    order = (Weight("order", (4, 64)), places)
    yield case("gather-pairs", "gather_pairs", [x, chosen], [order], top_k=2)
    for name, weighed in (("experts-of-pairs", ()), ("experts-of-sorted-pairs", (shares,))):
        given = [rows("y", "P", 64), chosen, *weighed]
        yield case(name, "experts", given, [gate, up, down], top_k=2, act="silu")
    yield case("experts-ungated", "experts", [x, chosen, shares], [up, down], top_k=2, act="relu2")
    for dtype in ("f32", "bf16", "q8"):
        gated: dict[str, Attr] = {
            "top_k": 2,
            "epilogue": "gated",
            "act": "gelu_tanh",
            "bias": False,
            "per_pair": False,
        }
        x = rows("x", "T", 64, dtype)
        yield case(f"expert-gated-{dtype}", "expert_linear", [x, chosen], [gate, up], **gated)
        plain: dict[str, Attr] = {"top_k": 2, "epilogue": "none", "act": "none", "bias": False}
        plain |= {"per_pair": True}
        x = rows("x", "P", 64, dtype)
        yield case(f"expert-plain-{dtype}", "expert_linear", [x, chosen], [gate], **plain)
        plain |= {"bias": True}
        weights = [gate, biases[0]]
        yield case(f"expert-bias-{dtype}", "expert_linear", [x, chosen], weights, **plain)
    yield case("combine", "combine", [rows("y", "P", 9), shares], top_k=2)
    yield case("combine-sums", "combine", [rows("y", "P", 9), chosen], top_k=2)


def routing(**attrs: Attr) -> dict[str, Attr]:
    """Of ``route``, softmax over all experts but for ``attrs``."""
    plain: dict[str, Attr] = {"score": "softmax", "n_groups": 1, "top_groups": 1}
    return plain | {"group_score": "best", "normalize": True, "scale": 1.0} | attrs


def dequantized(x: Rows) -> FloatArray:
    """f32 values of any rows."""
    if not isinstance(x, Q8):
        return x
    return (x.data * np.repeat(x.scales, x.data.shape[1] // x.scales.shape[1], axis=1)).astype("f4")


OP_CASES: tuple[OpCase, ...] = (
    *_row_cases(),
    *_linear_cases(),
    *_attention_cases(),
    *_place_cases(),
    *_vocabulary_cases(),
    *_latent_cases(),
    *_scan_cases(),
    *_expert_cases(),
)
