"""What a step costs, op by op, from the rules that the ops state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvasir.ir.layouts import LAYOUTS
from kvasir.ir.memory import plane_bytes
from kvasir.ir.ops import OPS, Call, Cost, Sizes
from kvasir.ir.program import Op, Program, Value, Weight


def weight_bytes(weight: Weight) -> float:
    """Packed size, without the padding of the last tile; not placed yet counts as f32."""
    return weight.n_elements * LAYOUTS[weight.layout or "f32"].bits / 8


def op_cost(program: Program, op: Op, sizes: Sizes) -> Cost:
    """Operations, and bytes moved when nothing stays in a cache."""
    return _op_cost(program, op, sizes, _whole(program))


def weights_read(program: Program, sizes: Sizes) -> float:
    """Bytes of weights that a step reads, in their layouts: of the embedding only its rows, of the
    experts those that are chosen."""
    whole = _whole(program)
    return sum(_weights_read(_call(program, op, sizes, whole)) for op in program.ops)


class _OfProgram(NamedTuple):
    """What ops need to know of their program."""

    kv_dtypes: Mapping[int, str]
    top_k: int


def _call(program: Program, op: Op, sizes: Sizes, whole: _OfProgram) -> Call:
    ins = tuple(program.values[name] for name in op.ins)
    outs = tuple(program.values[name] for name in op.outs)
    weights = tuple(program.weights[name] for name in op.weights)
    kv_dtype = whole.kv_dtypes[op.integer("layer")] if "layer" in op.attrs else "f32"
    return Call(op, ins, outs, weights, sizes, kv_dtype, whole.top_k)


def _op_cost(program: Program, op: Op, sizes: Sizes, whole: _OfProgram) -> Cost:
    definition = OPS[op.kind]
    call = _call(program, op, sizes, whole)
    moved = sum(_value_bytes(call, value) for value in (*call.ins, *call.outs))
    moved += _weights_read(call)
    return Cost(definition.flops(call), moved + definition.extra_bytes(call))


def program_cost(program: Program, sizes: Sizes) -> Cost:
    """Sum over all ops."""
    whole = _whole(program)
    costs = [_op_cost(program, op, sizes, whole) for op in program.ops]
    return Cost(sum(cost.flops for cost in costs), sum(cost.bytes for cost in costs))


def _weights_read(call: Call) -> float:
    share = OPS[call.op.kind].weight_share(call)
    return share * sum(weight_bytes(weight) for weight in call.weights)


def _whole(program: Program) -> _OfProgram:
    return _OfProgram({spec.layer: spec.dtype for spec in program.kv}, program.top_k)


def _value_bytes(call: Call, value: Value) -> float:
    symbol = value.shape[0]
    maxima = {symbol: call.rows(value)} if isinstance(symbol, str) else {}
    return float(sum(plane_bytes(value, maxima)))
