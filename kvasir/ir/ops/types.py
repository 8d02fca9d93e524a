"""What rules and references of ops are given, and what they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvasir.ir.numerics import Q8
from kvasir.ir.program import FloatArray, Op, TensorType, Value, Weight

Array = NDArray[Any]
Rows = Array | Q8
"""f32, bf16 (as f32 with bf16 values) and i32 rows are arrays; q8 rows are ``Q8``."""

Values = Sequence[Value]
Weights = Sequence[Weight]
Types = tuple[TensorType, ...]
Inputs = Sequence[Any]
Arrays = Sequence[FloatArray]
Outputs = tuple[Rows, ...]


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

    def view(self, layer: int, token: int, end: int = 0) -> KvView:
        """Entries at or before ``token``: its sequence's past, its ancestors and itself. With
        ``end`` all of its sequence before that position."""
        ...

    def state(self, layer: int, token: int) -> FloatArray:
        """What ``token`` finds in the state of its sequence, and where it leaves it: f32 [numbers],
        to be changed in place. Tokens ask in their order, once each."""
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
        """Of ``value`` in numbers; "P" is tokens x top_k."""
        dim = value.shape[0]
        if isinstance(dim, int):
            return dim
        if dim == "R":
            return self.sizes.logit_rows
        return self.sizes.tokens * (self.top_k if dim == "P" else 1)
