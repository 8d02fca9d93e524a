"""What a step costs, op by op, from the rules that the ops state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvasir.ir.memory import plane_bytes
from kvasir.ir.ops import OPS, Call, Cost, Sizes
from kvasir.ir.program import Op, Program, Value


def op_cost(program: Program, op: Op, sizes: Sizes) -> Cost:
    """Operations, and bytes moved when nothing stays in a cache."""
    return _sum(_calls(program, (op,), sizes))


def program_cost(program: Program, sizes: Sizes) -> Cost:
    """Sum over all ops."""
    return _sum(_calls(program, program.ops, sizes))


def weights_read(program: Program, sizes: Sizes) -> float:
    """Bytes of weights that a step reads, in their layouts: of the embedding only its rows, of the
    experts those that are chosen."""
    return sum(map(_weights_read, _calls(program, program.ops, sizes)))


def _calls(program: Program, ops: Iterable[Op], sizes: Sizes) -> Iterator[Call]:
    kv_dtypes, top_k = {spec.layer: spec.dtype for spec in program.kv}, program.top_k
    for op in ops:
        ins = tuple(program.values[name] for name in op.ins)
        outs = tuple(program.values[name] for name in op.outs)
        weights = tuple(program.weights[name] for name in op.weights)
        kv_dtype = kv_dtypes[op.integer("layer")] if "layer" in op.attrs else "f32"
        yield Call(op, ins, outs, weights, sizes, kv_dtype, top_k)


def _sum(calls: Iterable[Call]) -> Cost:
    flops = moved = 0.0
    for call in calls:
        rules = OPS[call.op.kind]
        flops += rules.flops(call)
        values = sum(_value_bytes(call, value) for value in (*call.ins, *call.outs))
        moved += values + _weights_read(call) + rules.extra_bytes(call)
    return Cost(flops, moved)


def _weights_read(call: Call) -> float:
    return OPS[call.op.kind].weight_share(call) * sum(weight.n_bytes for weight in call.weights)


def _value_bytes(call: Call, value: Value) -> float:
    symbol = value.shape[0]
    maxima = {symbol: call.rows(value)} if isinstance(symbol, str) else {}
    return float(sum(plane_bytes(value, maxima)))
