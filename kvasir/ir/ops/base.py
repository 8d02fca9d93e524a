"""What an op definition states: signature, shape rule, NumPy reference and cost, in one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvasir.ir.numerics import Q8
from kvasir.ir.program import Dim, FloatArray, Op, TensorType, Value, Weight

Array = NDArray[Any]
Rows = Array | Q8
"""f32, bf16 (as f32 with bf16 values) and i32 rows are arrays; q8 rows are ``Q8``."""

RAW, LOWERED, BOTH = frozenset({"raw"}), frozenset({"lowered"}), frozenset({"raw", "lowered"})


class KvView(NamedTuple):
    """What one token may look at, by logical position: positions [n], K and V [n, heads, dim].

    ``rounded``: the cache is bf16 or smaller, and queries meet it rounded to bf16.
    """

    positions: NDArray[np.int64]
    k: FloatArray
    v: FloatArray
    rounded: bool = False


class Env(Protocol):
    """What the references of stateful ops see of a step."""

    @property
    def constants(self) -> Mapping[str, FloatArray]: ...

    def write_kv(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        """Store this step's keys and values, [T, n_kv_heads, head_dim] each."""
        ...

    def view(self, layer: int, token: int) -> KvView:
        """Entries at or before ``token``: its sequence's past, its ancestors and itself."""
        ...

    def sample(self, logits: FloatArray) -> NDArray[np.int32]: ...

    def pool(self, rows: FloatArray) -> FloatArray:
        """Add each row to the sum of its request, one after the other in float64: per row the mean
        so far, as f32."""
        ...


class Sizes(NamedTuple):
    """A step in numbers; ``attended`` are (query, key) pairs, ``kv_entries`` tokens read."""

    tokens: int
    logit_rows: int
    attended: int = 0
    kv_entries: int = 0


class Cost(NamedTuple):
    flops: float
    bytes: float


class Call(NamedTuple):
    """An op with the types of everything it touches, and a step: what a cost rule sees."""

    op: Op
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]
    weights: tuple[Weight, ...]
    sizes: Sizes
    kv_dtype: str = "f32"
    """Type of the layer's cache entries, one of ``KV_TYPES``."""
    top_k: int = 1
    """The program's."""

    def rows(self, value: Value) -> int:
        return count(value.shape[0], self.sizes, self.top_k)


Values = Sequence[Value]
Weights = Sequence[Weight]
Types = tuple[TensorType, ...]
Inputs = Sequence[Any]
Arrays = Sequence[FloatArray]
Outputs = tuple[Rows, ...]
InferRule = Callable[[Op, Values, Weights], Types]
Reference = Callable[[Op, Inputs, Arrays, Env], Outputs]
CostRule = Callable[[Call], float]
NO_ATTRS: Mapping[str, type] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OpDef:
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
    infer: InferRule,
    *,
    n_ins: tuple[int, int | None] = (1, 1),
    n_weights: tuple[int, int | None] = (0, 0),
    attrs: Mapping[str, type] = NO_ATTRS,
    flops: CostRule = lambda call: 0.0,
    extra_bytes: CostRule = lambda call: 0.0,
    weight_share: CostRule = lambda call: 1.0,
) -> Callable[[Reference], OpDef]:
    """Makes a definition of a reference, whose name is that of the op.

    ``infer`` gives the types of the outputs and raises ``ShapeError`` on operands that do not fit.
    ``n_ins`` and ``n_weights`` are (least, most) counts; most None means any number.
    ``extra_bytes``: traffic beyond operands and weights, the KV cache. ``weight_share``: part of
    the weights' bytes that one step reads: embedding rows, chosen experts.
    """
    rules = (n_ins, n_weights, attrs, flops, extra_bytes, weight_share)
    return lambda reference: OpDef(reference.__name__, stages, infer, reference, *rules)


class ShapeError(ValueError):
    """Operands that do not fit an op's shape rule."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ShapeError(message)


def require_type(value: Value, dtype: str, rank: int = 2) -> None:
    fits = value.dtype == dtype and len(value.shape) == rank
    require(fits, f"{value.name} is {value.dtype}{value.shape}, expected {dtype} of rank {rank}")


def require_shape(found: Value | Weight, shape: tuple[Dim, ...]) -> None:
    require(found.shape == shape, f"{found.name} is {found.shape}, expected {shape}")


def require_columns(weight: Weight, k: int, rank: int = 2) -> None:
    """``weight`` meets rows of ``k`` elements."""
    fits = len(weight.shape) == rank and weight.shape[-1] == k
    require(fits, f"{weight.name} is {weight.shape}, rows have {k} elements")


def width(value: Value) -> int:
    """Columns of a value of rank 2."""
    columns = value.shape[-1]
    fits = len(value.shape) == 2 and isinstance(columns, int)
    require(fits, f"{value.name} is {value.shape}, expected [rows, a number of columns]")
    return int(columns)


def count(dim: Dim, sizes: Sizes, top_k: int) -> int:
    """A dimension in numbers; "P" is tokens x top_k."""
    if isinstance(dim, int):
        return dim
    if dim == "R":
        return sizes.logit_rows
    return sizes.tokens * (top_k if dim == "P" else 1)


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
