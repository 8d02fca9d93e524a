"""What an op definition states: signature, shape rule, NumPy reference and cost, in one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir.ir.ops.shapes import ShapeRule
from kvasir.ir.ops.types import Arrays, Call, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import FloatArray, Op

RAW, LOWERED, BOTH = frozenset({"raw"}), frozenset({"lowered"}), frozenset({"raw", "lowered"})
InferRule = Callable[[Op, Values, Weights], Types]
Reference = Callable[[Op, Inputs, Arrays, Env], Outputs]
CostRule = Callable[[Call], float]
NO_ATTRS: Mapping[str, type] = MappingProxyType({})


class OpDef(msgspec.Struct, frozen=True):
    """What ``defines`` says of an op."""

    kind: str
    stages: frozenset[str]
    infer: InferRule
    reference: Reference
    n_ins: tuple[int, int | None]
    n_weights: tuple[int, int | None]
    attrs: Mapping[str, type]
    flops: CostRule
    extra_bytes: CostRule
    weight_share: CostRule


def defines(
    stages: frozenset[str],
    infer: InferRule | str,
    *,
    n_ins: tuple[int, int | None] = (1, 1),
    n_weights: tuple[int, int | None] = (0, 0),
    attrs: Mapping[str, type] = NO_ATTRS,
    flops: CostRule = lambda call: 0.0,
    extra_bytes: CostRule = lambda call: 0.0,
    weight_share: CostRule = lambda call: 1.0,
) -> Callable[[Reference], OpDef]:
    """Makes a definition of a reference, whose name is that of the op.

    ``infer`` gives the types of the outputs and raises ``ShapeError`` on operands that do not fit;
    a text is a ``ShapeRule``, which has the counts. Else ``n_ins`` and ``n_weights`` are those,
    (least, most); most None means any number.
    ``extra_bytes``: traffic beyond operands and weights, the KV cache. ``weight_share``: part of
    the weights' bytes that one step reads: embedding rows, chosen experts.
    """
    if isinstance(infer, str):
        infer = ShapeRule(infer)
        n_ins, n_weights = infer.n_ins, infer.n_weights
    rule, rules = infer, (n_ins, n_weights, attrs, flops, extra_bytes, weight_share)
    return lambda reference: OpDef(reference.__name__, stages, rule, reference, *rules)


def per_element(factor: float) -> CostRule:
    """``factor`` operations for each element of the first output."""

    def rule(call: Call) -> float:
        out = call.outs[0]
        return factor * call.rows(out) * prod(int(d) for d in out.shape[1:])

    return rule


def attrs_of(**kinds: type) -> dict[str, type]:
    return kinds


def f32(x: NDArray[Any]) -> FloatArray:
    return np.ascontiguousarray(x, np.float32)
