"""The program that pools: beside a target, so that no step pays for it in which nobody pools."""

from __future__ import annotations

from types import MappingProxyType

from msgspec.structs import replace

from kvasir.ir.bundle import POOL, TARGET, Bundle, of_programs
from kvasir.ir.ops import ShapeError
from kvasir.ir.ops.rows import NORMS
from kvasir.ir.program import Op, Program, Value, freeze
from kvasir.ir.rewrite import with_ops

POOL_ROWS = "pool_rows"


def with_pool(target: Program) -> Bundle:
    """``target`` and a program of the rows that its head would read: gathered, normed by the same
    weight to f32, pooled. What is gathered from becomes an export; nothing else of ``target``
    changes.

    Raises ShapeError when its logits are not made of gathered, normed rows.
    """
    gather = next((op for op in target.ops if op.kind == "gather_rows"), None)
    norm = next((op for op in target.ops if gather and op.ins == gather.outs), None)
    if gather is None or norm is None or norm.kind not in NORMS:
        raise ShapeError(f"{target.name}: no norm of gathered rows to pool behind")
    rows = Value(POOL_ROWS, ("R",), "i32")
    hidden = target.values[gather.ins[0]]
    plain = freeze({**norm.attrs, "to": "f32", "block": 0})
    ops = (
        Op("gather_rows", (hidden.name, rows.name), ("pool.rows",)),
        Op(norm.kind, ("pool.rows",), ("pool.norm",), norm.weights, plain),
        Op("pool", ("pool.norm",), ("pooled",)),
    )
    empty = replace(
        target,
        name=f"{target.name}.{POOL}",
        ops=(),
        values=MappingProxyType({hidden.name: hidden, rows.name: rows}),
        kv=(),
        constants=MappingProxyType({}),
        inputs=(hidden.name, rows.name),
        outputs=("pooled",),
    )
    outputs = dict.fromkeys((*target.outputs, hidden.name))
    exporting = replace(target, outputs=tuple(outputs))
    return of_programs({TARGET: exporting, POOL: with_ops(empty, ops)})
