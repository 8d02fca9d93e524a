"""A model as a frozen value: ops over one ragged token axis, values, weights, KV layers.

Shapes hold integers and symbols: "T" tokens of the step, "R" logit rows, "P" token-expert pairs (T
x top_k).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Dim = int | str
Attr = int | float | str | bool | tuple[int, ...]
A = TypeVar("A")
FloatArray = NDArray[np.float32]

SYMBOLS = ("T", "R", "P")
DTYPES = ("f32", "bf16", "q8", "i32")
KV_WRITERS = ("kv_write", "rope_write", "latent_write")
"""Kinds of ops that write a layer's keys and values."""
KV_READERS = ("attention", "latent_attention")
"""Kinds of ops that read them."""
STATE_OPS = ("short_conv", "linear_scan")
"""Kinds of ops that read and write the state of a layer."""
CONSTANT_ATTRS = ("table", "q_table", "ids", "slopes")
"""Attributes of ops that name a constant."""
OPTIONAL_ATTRS = {"slopes"}
"""Those that an op may lack."""
STATE_ITEM_BYTES = 4
"""Of a number in a state: states are f32, whatever the type of keys and values is."""


class TensorType(NamedTuple):
    """``block`` is the number of elements that share an activation scale; q8 only, else 0."""

    shape: tuple[Dim, ...]
    dtype: str = "f32"
    block: int = 0


class Value(msgspec.Struct, frozen=True):
    """What an op gives or takes. Rows are the first axis."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    block: int = 0

    @property
    def type(self) -> TensorType:
        return TensorType(self.shape, self.dtype, self.block)


class Transform(msgspec.Struct, frozen=True):
    """A named step of ``kvasir.weights.transforms`` between the file's tensor and the weight."""

    name: str
    args: tuple[int | float, ...] = ()


class Weight(msgspec.Struct, frozen=True):
    """A parameter: [N, K] (linear, embedding), [E, N, K] (experts) or [K] (norms, biases).

    ``sources`` are tensor names in the model file, stacked along a new first axis when there is
    more than one. ``layout`` is the packed form that a backend's passes chose, by its own name;
    empty before.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...] = ()
    transforms: tuple[Transform, ...] = ()
    layout: str = ""
    bits: float = 32
    """Of an element where it is packed, scales and mins included; not placed yet it is f32."""
    row_bits: int = 0
    """What a row has beside its elements."""

    @property
    def n_elements(self) -> int:
        return prod(self.shape)

    @property
    def n_bytes(self) -> float:
        """Packed size, without the padding of the last tile."""
        return (self.n_elements * self.bits + prod(self.shape[:-1]) * self.row_bits) / 8


def freeze(attrs: Mapping[str, Attr]) -> Mapping[str, Attr]:
    return MappingProxyType(dict(attrs))


class Op(msgspec.Struct, frozen=True):
    """One step of the program; ``kind`` names its definition in ``kvasir.ir.ops``."""

    kind: str
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    attrs: Mapping[str, Attr] = msgspec.field(default_factory=lambda: freeze({}))

    def integer(self, name: str) -> int:
        return self._of(name, int)

    def integers(self, *names: str) -> tuple[int, ...]:
        return tuple(self._of(name, int) for name in names)

    def number(self, name: str) -> float:
        value = self.attrs[name]
        return float(value) if type(value) is int else self._of(name, float)

    def word(self, name: str) -> str:
        return self._of(name, str)

    def flag(self, name: str) -> bool:
        return self._of(name, bool)

    def _of(self, name: str, kind: type[A]) -> A:
        value = self.attrs[name]
        if not isinstance(value, kind):
            named = f"{self.kind}: attribute {name!r}"
            raise TypeError(f"{named} is {value!r}, expected {kind.__name__}")
        return value


class KVSpec(msgspec.Struct, frozen=True):
    """The cache of one layer.

    ``kind`` is "full", or "window": a token sees the last ``window`` positions, itself included; or
    "state": no position, but ``state_size`` numbers that its tokens change one after the other.
    """

    layer: int
    kind: str
    window: int
    n_kv_heads: int
    head_dim: int
    dtype: str = "f32"
    state_size: int = 0
    latent: int = 0
    """So many first numbers of a key are its value, and no other is kept; 0: keys and values."""

    @property
    def state_bytes(self) -> int:
        """Of a sequence; 0 for keys and values."""
        return STATE_ITEM_BYTES * self.state_size

    @property
    def n_vectors(self) -> int:
        """That a token keeps: a key and a value for each head, or a key alone."""
        return (1 if self.latent else 2) * self.n_kv_heads


def state_spec(layer: int, size: int) -> KVSpec:
    """A layer that keeps ``size`` numbers of a sequence."""
    return KVSpec(layer, "state", 0, 0, 0, state_size=size)


class Program(msgspec.Struct, frozen=True):
    """Ops in execution order. Every value is an input or the output of exactly one earlier op."""

    name: str
    ops: tuple[Op, ...]
    values: Mapping[str, Value]
    weights: Mapping[str, Weight]
    kv: tuple[KVSpec, ...]
    constants: Mapping[str, FloatArray]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def top_k(self) -> int:
        """Experts that a token is sent to, at most: the pairs "P" of a token."""
        return max((op.integer("top_k") for op in self.ops if "top_k" in op.attrs), default=1)
