"""Cases of the kernels that work on rows: all but attention and the linear ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from math import erf, sqrt

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.exec.cpu.codes import (
    ACT_CODES,
    EPILOGUE_CODES,
    LAYOUT_CODES,
    QK_NORM_CODES,
)
from tests.diff.attention_case import Pages, Shape, chain_step
from tests.diff.expert_case import Routing, combine_case, route_case, spread_case
from tests.diff.kernel_case import (
    FORMATS,
    LAYOUTS,
    Case,
    Floats,
    Ranges,
    empty_q8,
    file_rows,
    fitting,
    normal,
    pack,
    pack_format,
    quantize,
    rng_of,
)
from tests.diff.norm_case import EPS, ROWS, layer_norm_case, norm_case
from tests.diff.product_case import mul_case
from tests.kv_codes import to_bf16

SILU, GELU_TANH, GELU = (ACT_CODES[name] for name in ("silu", "gelu_tanh", "gelu"))
CLAMPED = ACT_CODES["clamped_swiglu"]
GATED, ACT = EPILOGUE_CODES["gated"], EPILOGUE_CODES["act"]


def cast_case(K: int, to: str, parts: int) -> Case:
    """The columns in ``parts``, each as if it came from another item."""
    x = normal(rng_of(K), ROWS, K)
    x[3] = 0
    block = 32 if K % 192 else 192
    columns = [np.ascontiguousarray(part) for part in np.split(x, parts, axis=1)]

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        q8 = empty_q8(ROWS, K, block) if to == "q8" else None
        out = np.zeros((ROWS, K), np.float32 if to == "f32" else np.uint16)
        for a, b in ranges:
            for i, part in enumerate(columns):
                rows = q8.rows if q8 else _native.Rows(out)
                k.cast(part, rows, a, b, i * part.shape[1])
        return (q8.data, q8.scales, q8.sums) if q8 else (out,)

    def expected() -> tuple[tuple[NDArray[np.generic], float], ...]:
        exact = quantize(x, block) if to == "q8" else (to_bf16(x) if to == "bf16" else x,)
        return tuple((y, 0.0) for y in exact)

    return Case(ROWS, run, expected)


def activation(act: int, x: NDArray[np.float64]) -> NDArray[np.float64]:
    if act == SILU:
        return x / (1 + np.exp(-x))
    if act == GELU_TANH:
        return 0.5 * x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if act == GELU:
        return 0.5 * x * (1 + np.vectorize(erf)(x / sqrt(2)))
    return x


def act_case(N: int, act: int) -> Case:
    """act(x + bias), by a linear whose weights hand on x as it is."""
    rng = rng_of(N, act, 3)
    x, bias = normal(rng, ROWS, N) * 4, normal(rng, N)
    w = pack_format("f32", "F32", [np.eye(N, dtype=np.float32).view(np.uint8)], N, N)
    code, tiles = LAYOUT_CODES["f32"], (0, -(-N // 16))

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.full_like(x, np.nan)
        for a, b in ranges:
            k.linear(code, w, N, _native.Rows(x), out, *tiles, a, b, ACT, act, None, bias)
        return (out,)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic]], ...]:
        y = activation(act, (x + bias).astype(np.float64))
        return ((y, 32 * EPS * np.abs(y) + EPS * 1e-2),)

    return Case(ROWS, run, expected)


class Gate:
    """act(gate) * up for ``n`` columns, by a linear whose weights hand on both as they are."""

    def __init__(self, n: int) -> None:
        nothing, same = np.zeros((n, n), np.float32), np.eye(n, dtype=np.float32)
        parts = [np.hstack([same, nothing]), np.hstack([nothing, same])]
        self._weights = pack_format("f32", "F32", [x.view(np.uint8) for x in parts], n, 2 * n)
        self._tiles = 2 * -(-n // 16)

    def run(
        self,
        kernels: _native.Kernels,
        gate: NDArray[np.float32],
        up: NDArray[np.float32],
        act: int,
        ranges: Ranges,
    ) -> NDArray[np.float32]:
        out, x = np.full_like(gate, np.nan), _native.Rows(np.hstack([gate, up]))
        n, code = 2 * gate.shape[1], LAYOUT_CODES["f32"]
        for a, b in ranges:
            tiles = (0, self._tiles)
            kernels.linear(code, self._weights, n, x, out, *tiles, a, b, GATED, act)
        return out


def gated_case(N: int, act: int) -> Case:
    rng = rng_of(N, act)
    gate, up = normal(rng, ROWS, N) * 4, normal(rng, ROWS, N) * (4 if act == CLAMPED else 1)
    handed = Gate(N)

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        return (handed.run(k, gate, up, act, ranges),)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic]], ...]:
        if act == CLAMPED:
            g, u = np.minimum(gate.astype(np.float64), 7), np.clip(up.astype(np.float64), -7, 7)
            y = g / (1 + np.exp(-1.702 * g)) * (u + 1)
        else:
            y = activation(act, gate.astype(np.float64)) * up
        return ((y, 32 * EPS * np.abs(y) + EPS * 1e-2),)

    return Case(ROWS, run, expected)


def add_case(N: int) -> Case:
    x, y = normal(rng_of(N), 2, ROWS, N)

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.zeros_like(x)
        for a, b in ranges:
            k.add(x, y, out, a, b)
        return (out,)

    return Case(ROWS, run, lambda: ((x + y, 0.0),))


def scale_case(N: int, softcap: float) -> Case:
    x = normal(rng_of(N), ROWS, N) * np.float32(10) ** np.linspace(-6, 3, N, dtype=np.float32)

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.zeros_like(x)
        for a, b in ranges:
            k.scale(x, out, 0.37, softcap, a, b)
        return (out,)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic]], ...]:
        y = x.astype(np.float64) * np.float32(0.37)
        y = softcap * np.tanh(y / softcap) if softcap else y
        return ((y, 6 * EPS * np.abs(y)),)

    return Case(ROWS, run, expected)


def gate_rows_case(N: int) -> Case:
    rng = rng_of(N)
    x, gate = normal(rng, ROWS, N), normal(rng, ROWS, 1) * 5
    gate[:2, 0] = 80, -80

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.zeros_like(x)
        for a, b in ranges:
            k.gate_rows(x, gate, out, a, b)
        return (out,)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic]], ...]:
        y = x / (1 + np.exp(-gate.astype(np.float64)))
        return ((y, 16 * EPS * np.abs(y) + 1e-37),)

    return Case(ROWS, run, expected)


def sparse_gate_case(N: int, act: int) -> Case:
    rng = rng_of(N)
    x, up = normal(rng, ROWS, N) + np.float32(0.3), normal(rng, ROWS, N)

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.zeros_like(x)
        for a, b in ranges:
            k.sparse_gate(x, up, out, 0.7, act, a, b)
        return (out,)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic]], ...]:
        wide = x.astype(np.float64)
        cut = wide.mean(axis=1, keepdims=True) + 0.7 * wide.std(axis=1, keepdims=True)
        y = activation(act, np.maximum(wide - cut, 0.0)) * up
        return ((y, 64 * EPS * (1 + np.abs(up))),)

    return Case(ROWS, run, expected)


def embed_case(layout: int, N: int, K: int) -> Case:
    K = fitting(layout, K)
    rng = rng_of(layout, N, K)
    raw, values = file_rows(rng, FORMATS[layout], N, K)
    w = pack(layout, [raw], N, K)
    ids = rng.integers(0, N, ROWS).astype(np.int32)
    ids[:2] = 0, N - 1

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.zeros((ROWS, K), np.float32)
        for a, b in ranges:
            k.embed(LAYOUT_CODES[LAYOUTS[layout]], w, ids, 1.5, out, a, b)
        return (out,)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic]], ...]:
        y = values[ids] * 1.5
        return ((y, 4 * EPS * np.abs(y)),)

    return Case(ROWS, run, expected)


def rope_reference(
    x: NDArray[np.float64], weight: Floats | None, kind: str, table: Floats, neox: bool
) -> NDArray[np.float64]:
    """x [T, heads, head_dim]; table [T, rotary_dim]."""

    def normed(y: NDArray[np.float64]) -> NDArray[np.float64]:
        axes = (1, 2) if kind == "width" else (2,)
        scale = np.ones(1) if weight is None else weight.reshape(-1, x.shape[2])
        return y / np.sqrt((y**2).mean(axes, keepdims=True) + 1e-6) * scale

    y = normed(x) if kind in ("heads", "width", "all") else x.copy()
    half = table.shape[1] // 2
    cos, sin = (t[:, None].astype(np.float64) for t in (table[:, :half], table[:, half:]))
    first = np.arange(half) if neox else 2 * np.arange(half)
    second = first + (half if neox else 1)
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
    return normed(y) if kind == "turned" else y


def kv_bound(values: Floats, dtype: str) -> NDArray[np.float32] | float:
    """One step of the type's grid: what an input on the border of two codes may make."""
    if dtype == "int8":
        return 1.01 * np.abs(values).max(axis=-1, keepdims=True) / 127 * np.ones_like(values)
    steps = {"f32": 0.0, "bf16": 2**-8, "fp8_e4m3": 2**-3, "fp8_e5m2": 2**-2}
    return np.float32(1.01 * steps[dtype]) * np.abs(values) + (2**-6 if "fp8" in dtype else 0)


def rope_case(head_dim: int, rotary: int, neox: bool, kind: str, dtype: str) -> Case:
    """Queries turn by tables of their own, 1.5 times as long. "keys": "all" without values."""
    n_values, kind = int(kind != "keys"), kind.replace("keys", "all")
    shape = Shape(head_dim=head_dim, group=2, n_kv_heads=2, dtype=dtype, block_size=32)
    rng, start = rng_of(head_dim, rotary), 27
    qkv = normal(rng, ROWS, (shape.n_heads + (1 + n_values) * shape.n_kv_heads) * head_dim)
    angle = rng.uniform(-3, 3, (64, rotary // 2))
    table = np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
    wide = (shape.n_heads, shape.n_kv_heads) if kind == "width" else (1, 1)
    norms = tuple(normal(rng, n * head_dim) for n in wide)
    bare, kind = kind == "bare", kind.replace("bare", "turned")
    weights = (None, None) if kind == "none" or bare else norms
    rule = (neox, table, 1.5 * table, QK_NORM_CODES[kind], *weights, 1e-6)
    order = rng.permutation(6).astype(np.int32)

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        pages = Pages(shape, start + ROWS, order)
        pages.memory[:] = 0
        q = np.zeros((ROWS, shape.n_heads * head_dim), np.float32)
        kv, step = pages.native(), chain_step(pages, start, start + ROWS)
        for a, b in ranges:
            k.rope_write(qkv, q, shape.n_heads, *rule, kv, step, a, b)
        return q, pages.values()

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic] | float], ...]:
        x = qkv.astype(np.float64).reshape(ROWS, -1, head_dim)
        q, kk = x[:, : shape.n_heads], x[:, shape.n_heads : shape.n_heads + shape.n_kv_heads]
        v = x[:, -shape.n_kv_heads :]
        v = v / np.sqrt((v**2).mean(2, keepdims=True) + 1e-6) if kind == "all" else v
        angles = table[start : start + ROWS]
        pages = Pages(shape, start + ROWS, order)
        pages.memory[:] = 0
        ones = np.ones(head_dim, np.float32)
        of_q, of_k = (ones, ones) if bare else weights
        rotated = rope_reference(kk, of_k, kind, angles, neox).astype(np.float32)
        pages.write(start, rotated, v.astype(np.float32))
        memory = pages.values()
        turned = rope_reference(q, of_q, kind, 1.5 * angles, neox).reshape(ROWS, -1)
        bound = kv_bound(memory, dtype) + 32 * EPS
        return (turned, 32 * EPS), (memory, bound)

    return Case(ROWS, run, expected)


def row_cases() -> dict[str, Case]:
    """Sizes with and without a tail, every output type, every option."""
    cases: dict[str, Case] = {}

    def every(name: str, build: Callable[..., Case], *options: Iterable[object]) -> None:
        for chosen in product(*options):
            flat = [x for c in chosen for x in (c if isinstance(c, tuple) else (c,))]
            cases["-".join(str(x) for x in (name, *flat))] = build(*flat)

    both = (True, False)
    q8 = [(576, "q8"), (96, "q8")]
    sizes = [*q8, (576, "bf16"), (7, "bf16"), (576, "f32"), (33, "f32"), (16, "f32")]
    every("norm", norm_case, sizes, both)
    every("layer_norm", layer_norm_case, sizes, both)
    every("cast", cast_case, [*q8, (576, "bf16"), (39, "bf16"), (9, "f32")], (1, 3))
    every("gated", gated_case, (96, 45), (0, SILU, GELU_TANH, GELU, CLAMPED))
    every("act", act_case, (96, 45), (0, SILU, GELU_TANH, GELU))
    every("add", add_case, (576, 19))
    every("scale", scale_case, (600, 15), (0.0, 30.0))
    every("gate_rows", gate_rows_case, (576, 19))
    every("sparse_gate", sparse_gate_case, (576, 19), (SILU, GELU_TANH, GELU))
    every("mul", mul_case, (576, 19), (-1, 5))
    plain = [(4, 1), (8, 2), (60, 4), (128, 8), (6, 6), (1024, 8)]
    kinds = [Routing(n, top) for n, top in plain]
    kinds += [
        Routing(16, 4, "sigmoid"),
        Routing(16, 1, "late_sigmoid"),
        Routing(20, 3, "late_sigmoid", (4, 2), "best", 1.5, True),
        Routing(20, 3, "softmax", has_bias=True),
        Routing(32, 4, "softmax", (4, 2), scale=16.0),
        Routing(64, 6, "sigmoid", (8, 3), "best_two", 2.5, True),
        Routing(36, 6, "sigmoid", (3, 1), "best_two", 0.5, True),
    ]
    for kind, normalize in product(kinds, both):
        cases[f"route-{kind}-{normalize}"] = route_case(kind, normalize)
    every("spread", spread_case, [(576, 1), (21, 3)])
    every("combine", combine_case, [(576, 2), (21, 8)], both)
    every("embed", embed_case, range(len(LAYOUTS)), [37], [64, 96])
    every("embed", embed_case, range(2), [20], [33])
    heads = [(64, 64), (16, 16), (80, 32), (256, 256), (48, 44)]
    kinds = [
        ("none", "bf16"),
        ("heads", "f32"),
        ("width", "f32"),
        ("turned", "f32"),
        ("bare", "f32"),
    ]
    every("rope", rope_case, heads, both, kinds)
    every("rope", rope_case, [(64, 64), (512, 128)], [True], ["all", "keys"], ["f32"])
    every(
        "rope", rope_case, [(64, 64), (48, 44)], [(True, "heads")], ("int8", "fp8_e4m3", "fp8_e5m2")
    )
    return cases
