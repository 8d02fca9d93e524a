"""Experts whose inputs a checkpoint takes in another order (GPTQ's act-order), each in its own: the
rows of its pairs are gathered in that of its gate and up, whose outputs lie in that of its down."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvasir.core.errors import ModelError
from kvasir.formats.types import TensorInfo
from kvasir.ir.ops.moe import n_matrices
from kvasir.ir.program import Op, Program, Weight, freeze
from kvasir.ir.rewrite import with_ops
from kvasir.weights.bind import Binding, BoundWeight
from kvasir.weights.quantization.integer_rows import input_order
from kvasir.weights.quantization.integers import IntegerModule, is_sorted


def with_expert_order(program: Program, binding: Binding) -> tuple[Program, Binding]:
    """A raw program and its weights; where no expert has such a matrix, those that were given.
    Raises ModelError where gate and up of an expert differ, or are not of integers."""
    if not any(_is_ordered(op, binding) for op in program.ops):
        return program, binding
    ops: list[Op] = []
    weights, table = dict(binding.weights), dict(program.weights)
    for op in program.ops:
        if not _is_ordered(op, binding):
            ops.append(op)
            continue
        *inner, down = (binding[name] for name in matrices_of(op))
        _check(op, inner, down)
        weights |= {bound.weight.name: _feeding(bound, down) for bound in inner}
        if any(map(is_sorted, inner[0].tensors)):
            made = _vectors(f"{inner[0].weight.name}.order", inner[0])
            weights[made.weight.name], table[made.weight.name] = made, made.weight
            pairs, attrs = f"{op.outs[0]}.sorted", freeze({"top_k": op.integer("top_k")})
            ops.append(Op("gather_pairs", op.ins[:2], (pairs,), (made.weight.name,), attrs))
            op = replace(op, ins=(pairs, *op.ins[1:]))
        ops.append(op)
    return with_ops(program, ops, table), replace(binding, weights=weights)


def _is_ordered(op: Op, binding: Binding) -> bool:
    return any(is_sorted(tensor) for name in matrices_of(op) for tensor in binding[name].tensors)


def matrices_of(op: Op) -> tuple[str, ...]:
    """Names of the matrices of experts, down last; of other ops none."""
    return op.weights[: n_matrices(len(op.weights))] if op.kind == "experts" else ()


def _check(op: Op, inner: Sequence[BoundWeight], down: BoundWeight) -> None:
    """Raises ModelError for what is not computed."""
    moves = any(bound.weight.transforms for bound in (*inner, down))
    if moves or len(op.ins) < 3 or len(op.weights) > len(inner) + 1:
        first = next(x for bound in (*inner, down) for x in bound.tensors if is_sorted(x))
        raise _unread(first, "of experts that have biases, weights before them, or rows that move")
    for one, *others in zip(*(bound.tensors for bound in inner), strict=True):
        for other in others:
            if not np.array_equal(_order(one), _order(other)):
                raise ModelError(
                    f"tensors '{one.name}' and '{other.name}' take their inputs in different "
                    "orders (desc_act), and both are computed as one: quantize them alike, or "
                    "without desc_act"
                )


def _order(tensor: TensorInfo) -> NDArray[np.int64]:
    """Of the inputs of an expert's matrix, ascending where they stay as they are."""
    module = tensor.module
    if isinstance(module, IntegerModule) and module.g_idx is not None:
        return input_order(module)
    return np.arange(tensor.shape[-1])


def _feeding(bound: BoundWeight, down: BoundWeight) -> BoundWeight:
    """Gates, or ups, with the rows of each in the order in which its down reads them."""
    pairs = zip(bound.tensors, down.tensors, strict=True)
    return replace(bound, tensors=tuple([_feeds(tensor, reader) for tensor, reader in pairs]))


def _feeds(tensor: TensorInfo, reader: TensorInfo) -> TensorInfo:
    if not is_sorted(reader):
        return tensor
    if not isinstance(tensor.module, IntegerModule) or not isinstance(reader.module, IntegerModule):
        raise _unread(reader, f"behind '{tensor.name}', which has no integers,")
    return tensor._replace(module=replace(tensor.module, feeds=reader.module))


def _vectors(name: str, bound: BoundWeight) -> BoundWeight:
    """Places [experts, inputs], f32."""
    places = np.stack([_order(tensor) for tensor in bound.tensors]).astype("<f4")
    info = TensorInfo(name, "F32", places.shape, memoryview(places.tobytes()))
    return BoundWeight(Weight(name, places.shape, (name,)), (info,))


def _unread(tensor: TensorInfo, what: str) -> ModelError:
    return ModelError(
        f"tensor '{tensor.name}': inputs in another order (desc_act) {what} are not computed: "
        "quantize the model without desc_act"
    )
