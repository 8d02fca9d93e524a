"""Chooses the packed layout of every weight, and the activation type that each linear reads."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT, common_layout
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.ir.numerics import MAX_ACT_BLOCK, act_block
from kvasir.ir.ops.linear import ACTIVATES
from kvasir.ir.ops.rows import NORMS
from kvasir.ir.program import Op, Program, Weight, freeze
from kvasir.ir.rewrite import Graph, graph, with_ops

MATRIX_OPS = ("linear", "lm_head", "expert_linear", "head_linear")


def place_weights(
    program: Program, *, dtype: str, formats: Mapping[str, str], act_limit: int = MAX_ACT_BLOCK
) -> Program:
    """Sets ``Weight.layout`` and makes norms and casts give what the linears read.

    ``dtype`` "auto" keeps every format as it is stored, "bfloat16" and "float32" bring all matrices
    to one layout. ``formats``: file format of each weight. Routers, gates, norms and biases stay
    f32.
    Raises ValueError on unknown dtypes and formats.
    """
    weights = _layouts(program, dtype, formats)
    wanted = _wanted(program, weights, act_limit)
    return with_ops(program, _insert_casts(program, wanted), weights)


def _layouts(program: Program, dtype: str, formats: Mapping[str, str]) -> dict[str, Weight]:
    routers = _router_weights(program)
    matrices = {
        name
        for op in program.ops
        for name in matrix_weights(op)
        if op.kind in (*MATRIX_OPS, "embed") and name not in routers
    }
    layouts = {name: "f32" for name in program.weights}
    layouts |= {name: layout_for(name, formats[name], dtype) for name in matrices}
    for op in program.ops:
        names = matrix_weights(op)
        if op.kind == "head_linear":  # its rows may be columns of the file's, which share scales
            is_plain = layouts[names[0]] in ("f32", "f16")
            layouts[names[0]] = "f32" if is_plain else "bf16"
        found = {layouts[name] for name in names}
        if op.kind in MATRIX_OPS and (_interleaves(op) or len({LAYOUTS[n].act for n in found}) > 1):
            # One op reads one activation type, and tiles of gate and up lie side by side.
            layouts |= dict.fromkeys(names, common_layout(found))
    return {name: _packed(weight, layouts[name]) for name, weight in program.weights.items()}


def _packed(weight: Weight, layout: str) -> Weight:
    kind = LAYOUTS[layout]
    return replace(weight, layout=layout, bits=kind.bits, row_bits=kind.row_bits)


def _interleaves(op: Op) -> bool:
    return op.kind in ("linear", "expert_linear") and op.word("epilogue") == "gated"


def matrix_weights(op: Op) -> tuple[str, ...]:
    """The weights of a matrix op that are not biases."""
    if op.kind == "expert_linear":
        return op.weights[: 1 + _interleaves(op)]
    if op.kind == "lm_head":
        return op.weights[:1]
    return op.weights[: op.integer("n_segments")] if op.kind == "linear" else op.weights


def layout_for(name: str, format: str, dtype: str) -> str:
    """The layout of a matrix stored as ``format``."""
    if dtype == "float32":  # halves are floats that take half the memory
        return "f16" if format == "F16" else "f32"
    if dtype == "bfloat16":
        return "bf16"
    if dtype != "auto":
        raise ValueError(f"dtype {dtype!r}: expected auto, bfloat16 or float32")
    if format not in LAYOUT_OF_FORMAT:
        raise ValueError(
            f"weight {name}: no layout for format {format}; known: {', '.join(LAYOUT_OF_FORMAT)}"
        )
    return LAYOUT_OF_FORMAT[format]


def _router_weights(program: Program) -> set[str]:
    """Of routers, of the gates of rows, and of the steps and shares of scans; also where they have
    a factor."""
    links = graph(program)
    readers = {"route": slice(0, 1), "gate_rows": slice(1, 2), "linear_scan": slice(1, 3)}
    logits = [x for op in program.ops if op.kind in readers for x in op.ins[readers[op.kind]]]
    makers = [program.ops[links.makers[value]] for value in logits]
    linears = [program.ops[links.makers[x.ins[0]]] if x.kind == "scale" else x for x in makers]
    linears += _of_streams(program, links)
    return {name for linear in linears for name in linear.weights}


def _of_streams(program: Program, links: Graph) -> list[Op]:
    """Linears of the shares of streams, and those of what these read."""
    at = {"mix_streams": 1, "correct_streams": 2}
    shares = [op.ins[at[op.kind]] for op in program.ops if op.kind in at]
    outer = [program.ops[links.makers[value]] for value in shares]
    bounded = [program.ops[links.makers[linear.ins[0]]] for linear in outer]
    return outer + [program.ops[links.makers[x.ins[0]]] for x in bounded]


Wanted = dict[tuple[int, str], tuple[str, int]]
"""(op index, value) -> (dtype, block) that the op reads the value as."""


def _wanted(program: Program, weights: Mapping[str, Weight], act_limit: int) -> Wanted:
    wanted: Wanted = {}
    for index, op in enumerate(program.ops):
        if op.kind not in MATRIX_OPS:
            continue
        dtype = LAYOUTS[weights[op.weights[0]].layout].act
        k = weights[op.weights[0]].shape[-1]
        wanted[index, op.ins[0]] = (dtype, act_block(k, act_limit) if dtype == "q8" else 0)
    return wanted


def _insert_casts(program: Program, wanted: Wanted) -> list[Op]:
    links = graph(program)
    whole: dict[str, tuple[str, int]] = {}
    for value, users in links.users.items():
        types = {wanted.get((user, value), ("f32", 0)) for user in users}
        maker = links.makers.get(value)
        if len(types) == 1 and maker is not None and _gives(program.ops[maker], *next(iter(types))):
            whole[value] = types.pop()
    ops: list[Op] = []
    casts: dict[tuple[str, str, int], str] = {}
    for index, op in enumerate(program.ops):
        if op.outs and op.outs[0] in whole:
            dtype, block = whole[op.outs[0]]
            op = replace(op, attrs=freeze({**op.attrs, "to": dtype, "block": block}))
        if op.kind in MATRIX_OPS and op.ins[0] not in whole:
            op = _with_cast(op, wanted[index, op.ins[0]], casts, ops)
        ops.append(op)
    return ops


def _gives(op: Op, dtype: str, block: int) -> bool:
    """Whether ``op`` can give rows of this type itself: whole blocks in each part of its work."""
    if op.kind == "attention":
        heads = op.integer("n_heads") // op.integer("n_kv_heads")
        return dtype != "q8" or heads * op.integer("head_dim") % block == 0
    if op.kind == "linear":
        return op.word("epilogue") in ACTIVATES
    return op.kind in NORMS


def _with_cast(
    op: Op, want: tuple[str, int], casts: dict[tuple[str, str, int], str], ops: list[Op]
) -> Op:
    """``op`` reading its first input as ``want``; appends a missing cast to ``ops``."""
    dtype, block = want
    if dtype == "f32":
        return op
    source = op.ins[0]
    key = (source, dtype, block)
    if key not in casts:
        casts[key] = f"{source}.{dtype}"
        ops.append(Op("cast", (source,), (casts[key],), (), freeze({"to": dtype, "block": block})))
    return replace(op, ins=(casts[key], *op.ins[1:]))
