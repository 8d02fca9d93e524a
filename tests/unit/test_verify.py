"""Every rule of the verifier can fail, and says which op or value broke it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from kvasir.exec.cpu.passes import lower_passes
from kvasir.ir.builder import Builder
from kvasir.ir.fuse import fuse
from kvasir.ir.program import Attr, KVSpec, Op, Program, Value, freeze
from kvasir.ir.verify import ProgramError, verify


def program() -> Program:
    """One attention layer and a head."""
    b = Builder("small")
    tokens = b.input("tokens", ("T",), "i32")
    positions = b.input("positions", ("T",), "i32")
    picks = b.input("logit_rows", ("R",), "i32")
    b.constant("rope", np.ones((8, 16), np.float32))
    b.kv(KVSpec(0, "full", 0, 1, 16))
    x = b.op("embed", (tokens,), "x", (b.weight("embed", (40, 32)),), scale=1.0)
    plain: dict[str, Attr] = {"n_segments": 1, "bias": False, "epilogue": "none", "act": "none"}
    plain |= {"to": "f32", "block": 0}
    q, k, v = (
        b.op("linear", (x,), name, (b.weight(f"w.{name}", (n, 32)),), **plain)
        for name, n in (("q", 32), ("k", 16), ("v", 16))
    )
    rope: dict[str, Attr] = {"head_dim": 16, "rotary_dim": 16, "style": "neox", "table": "rope"}
    q = b.op("rope", (q, positions), "q.rope", n_heads=2, **rope)
    k = b.op("rope", (k, positions), "k.rope", n_heads=1, **rope)
    b.ops("kv_write", (k, v), (), layer=0, n_kv_heads=1, head_dim=16)
    sizes: dict[str, Attr] = {"layer": 0, "n_heads": 2, "n_kv_heads": 1, "head_dim": 16}
    sizes |= {"scale": 0.25, "window": 0, "softcap": 0.0, "chunked": False, "to": "f32", "block": 0}
    y = b.op("attention", (q,), "y", **sizes)
    y = b.op("gather_rows", (y, picks), "rows")
    logits = b.op("lm_head", (y,), "logits", ("embed",))
    return b.build((logits, b.op("sample", (logits,), "drawn")))


def index_of(p: Program, kind: str) -> int:
    return next(i for i, op in enumerate(p.ops) if op.kind == kind)


def with_op(p: Program, kind: str, change: Callable[[Op], Op]) -> Program:
    index = index_of(p, kind)
    return replace(p, ops=(*p.ops[:index], change(p.ops[index]), *p.ops[index + 1 :]))


def with_attrs(p: Program, kind: str, **attrs: Attr) -> Program:
    return with_op(p, kind, lambda op: replace(op, attrs=freeze({**op.attrs, **attrs})))


def without_attr(p: Program, kind: str, name: str) -> Program:
    def change(op: Op) -> Op:
        return replace(op, attrs=freeze({k: v for k, v in op.attrs.items() if k != name}))

    return with_op(p, kind, change)


def drop(p: Program, kind: str) -> Program:
    index = index_of(p, kind)
    return replace(p, ops=p.ops[:index] + p.ops[index + 1 :])


BROKEN: dict[str, tuple[Callable[[Program], Program], str]] = {
    "unknown kind": (
        lambda p: with_op(p, "embed", lambda op: replace(op, kind="embde")),
        r"op 0 \(embde -> x\): unknown op kind",
    ),
    "inputs": (
        lambda p: with_op(p, "lm_head", lambda op: replace(op, ins=())),
        "inputs: 0, expected 1 to 1",
    ),
    "weights": (
        lambda p: with_op(p, "lm_head", lambda op: replace(op, weights=())),
        "weights: 0, expected 1 to 2",
    ),
    "missing attribute": (
        lambda p: without_attr(p, "embed", "scale"),
        "attribute scale is missing",
    ),
    "unknown attribute": (
        lambda p: with_attrs(p, "embed", speed=1),
        "unknown attribute speed",
    ),
    "type of attribute": (
        lambda p: with_attrs(p, "embed", scale=1),
        "attribute scale is 1, expected float",
    ),
    "undefined": (
        lambda p: with_op(p, "lm_head", lambda op: replace(op, ins=("nothing",))),
        "reads nothing, which no earlier op makes",
    ),
    "undeclared weight": (
        lambda p: with_op(p, "lm_head", lambda op: replace(op, weights=("nothing",))),
        "weight nothing is not declared",
    ),
    "made twice": (
        lambda p: with_op(p, "lm_head", lambda op: replace(op, outs=("x",))),
        "x is made twice",
    ),
    "no type": (
        lambda p: with_op(p, "lm_head", lambda op: replace(op, outs=("z",))),
        "z has no type",
    ),
    "shape rule": (
        lambda p: with_attrs(p, "rope", n_heads=3),
        "q has 32 columns, expected 3 x 16",
    ),
    "recorded type": (
        lambda p: replace(p, values={**p.values, "x": Value("x", ("T", 31), "f32")}),
        "the shape rule gives",
    ),
    "number of outputs": (
        lambda p: with_op(p, "lm_head", lambda op: replace(op, outs=())),
        "0 outputs, expected 1",
    ),
    "no table": (
        lambda p: with_attrs(p, "rope", table="nothing"),
        "constant nothing is not declared",
    ),
    "table of other width": (
        lambda p: with_attrs(p, "rope", rotary_dim=8),
        r"table rope is \(8, 16\), expected 8 columns",
    ),
    "output": (
        lambda p: replace(p, outputs=("nothing",)),
        "output nothing is never made",
    ),
    "unread": (
        lambda p: replace(p, outputs=("logits",)),
        r"drawn \(sample\) is made and never read",
    ),
    "unused weight": (
        lambda p: replace(p, weights={**p.weights, "more": p.weights["embed"]}),
        "weight more is declared and never used",
    ),
    "no KV spec": (
        lambda p: replace(p, kv=()),
        "layer 0 has no KV spec",
    ),
    "two KV specs": (
        lambda p: replace(p, kv=p.kv * 2),
        "two KV specs for one layer",
    ),
    "other heads": (
        lambda p: replace(p, kv=(replace(p.kv[0], n_kv_heads=2),)),
        "heads differ from the KV spec of layer 0",
    ),
    "other window": (
        lambda p: with_attrs(p, "attention", window=4),
        "window 4 differs from the KV spec",
    ),
    "no scale": (
        lambda p: with_attrs(p, "attention", scale=0.0),
        "scale=0.0, expected more than 0",
    ),
    "no slopes": (
        lambda p: with_attrs(p, "attention", slopes="rope"),
        r"slopes rope is \(8, 16\), expected 2 columns",
    ),
    "slopes and a cap": (
        lambda p: with_attrs(p, "attention", slopes="rope", softcap=5.0),
        "slopes beside a soft cap",
    ),
    "unread keys": (
        lambda p: drop(p, "kv_write"),
        r"v \(linear\) is made and never read",
    ),
}


def test_whole_program_passes_both_stages() -> None:
    verify(program(), "raw")
    formats = dict.fromkeys(program().weights, "Q8_0")
    verify(lower_passes(program(), dtype="auto", formats=formats), "lowered")


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_is_named(name: str) -> None:
    breaking, message = BROKEN[name]
    with pytest.raises(ProgramError, match=message):
        verify(breaking(program()), "raw")


def test_cache_read_before_written() -> None:
    p = program()
    at = index_of(p, "attention")
    late = (*p.ops[: at - 1], p.ops[at], p.ops[at - 1], *p.ops[at + 1 :])
    with pytest.raises(ProgramError, match="reads the cache of layer 0 before this step wrote it"):
        verify(replace(p, ops=late), "raw")


def test_raw_ops_are_refused_after_the_passes() -> None:
    with pytest.raises(ProgramError, match="not allowed in a lowered program"):
        verify(program(), "lowered")


def test_weights_need_a_layout_after_the_passes() -> None:
    with pytest.raises(ProgramError, match="weight embed has no layout"):
        verify(fuse(program()), "lowered")


def test_unknown_stage() -> None:
    with pytest.raises(ValueError, match="expected one of raw, lowered"):
        verify(program(), "done")
