"""Matrices whose inputs a checkpoint takes in another order (GPTQ's act-order): their columns lie
sorted by group, and what they meet is gathered in that order in front of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from kvasir.core.errors import ModelError
from kvasir.formats.types import TensorInfo
from kvasir.ir.program import Op, Program, Weight
from kvasir.ir.rewrite import with_ops
from kvasir.weights.bind import Binding, BoundWeight
from kvasir.weights.expert_order import matrices_of, with_expert_order
from kvasir.weights.quantization.integer_rows import input_order
from kvasir.weights.quantization.integers import IntegerModule, is_sorted

_READERS = ("linear", "lm_head")
MAX_INPUTS = 1 << 24
"""Places are kept as f32, which has all whole numbers up to here."""


def with_input_order(program: Program, binding: Binding) -> tuple[Program, Binding]:
    """A raw program and its weights, with a gather before every op that reads such a matrix. Ops
    that read the same rows in the same order share one. Raises ModelError where another kind of op
    reads one."""
    program, binding = with_expert_order(program, binding)
    done = {name for op in program.ops for name in matrices_of(op)}
    orders = {
        name: order
        for name, bound in binding.weights.items()
        if name not in done and (order := _order(bound))
    }
    if not orders:
        return program, binding
    _check_together(program, binding, orders)
    ops: list[Op] = []
    gathered: dict[tuple[str, bytes], str] = {}
    weights: dict[str, BoundWeight] = {}
    for op in program.ops:
        found = [name for name in op.weights if name in orders]
        if found and (op.kind not in _READERS or found != [op.weights[0]]):
            raise _unread(binding, found[0])
        if found:
            key = op.ins[0], orders[found[0]]
            if key not in gathered:
                gathered[key] = f"{op.ins[0]}.sorted{len(gathered)}"
                weights[f"{found[0]}.order"] = _vector(f"{found[0]}.order", key[1])
                sorting = Op("gather_columns", op.ins[:1], (gathered[key],), (f"{found[0]}.order",))
                ops.append(sorting)
            op = replace(op, ins=(gathered[key], *op.ins[1:]))
        ops.append(op)
    table: Mapping[str, Weight] = {**program.weights, **{x: y.weight for x, y in weights.items()}}
    return with_ops(program, ops, table), replace(binding, weights={**binding.weights, **weights})


def _check_together(program: Program, binding: Binding, orders: Mapping[str, bytes]) -> None:
    """Raises ModelError where matrices that are computed as one read their inputs in several
    orders: of q, k and v, or of gate and up, some have other groups, or are not quantized."""
    first: dict[tuple[str, str], str] = {}
    for op in program.ops:
        layer, _, part = op.weights[0].rpartition(".") if op.weights else ("", "", "")
        together = next((x for x in _TOGETHER if part in x), None)
        if op.kind != "linear" or together is None:
            continue
        name = op.weights[0]
        other = first.setdefault((layer, together[0]), name)
        if orders.get(other, b"") != orders.get(name, b""):
            one, two = (binding[x].tensors[0].name for x in (other, name))
            raise ModelError(
                f"tensors '{one}' and '{two}' take their inputs in different orders (desc_act), "
                f"and {', '.join(together)} are computed as one: quantize all of them alike, or "
                "without desc_act"
            )


_TOGETHER = ("q", "k", "v"), ("gate", "up")


def refuse_input_order(binding: Binding) -> Binding:
    """``binding``. Raises ModelError where a matrix of it needs its inputs in another order."""
    name = next((name for name, bound in binding.weights.items() if _order(bound)), None)
    if name is not None:
        raise _unread(binding, name)
    return binding


def _order(bound: BoundWeight) -> bytes:
    """Of its inputs, as f32; empty where they stay as they are."""
    if not any(map(is_sorted, bound.tensors)):
        return b""
    module = bound.tensors[0].module
    if len(bound.tensors) > 1 or not isinstance(module, IntegerModule) or module.k > MAX_INPUTS:
        raise ModelError(
            f"tensor '{bound.tensors[0].name}': inputs of experts in another order (desc_act) are "
            "not computed here: quantize the model without desc_act"
        )
    return input_order(module).astype("<f4").tobytes()


def _vector(name: str, order: bytes) -> BoundWeight:
    places = np.frombuffer(order, "<f4")
    info = TensorInfo(name, "F32", places.shape, memoryview(order))
    return BoundWeight(Weight(name, places.shape, (name,)), (info,))


def _unread(binding: Binding, name: str) -> ModelError:
    return ModelError(
        f"tensor '{binding[name].tensors[0].name}' takes its inputs in another order (desc_act), "
        "which is computed in front of linears alone: quantize the model without desc_act"
    )
