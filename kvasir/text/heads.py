"""What turns a vector into logits, a classifier of the model's own or rows of its language head, or
into the vector that is told.

Few rows meet few vectors: they are read where answers are made, and no step waits for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir.checkpoints.dense_layers import DenseLayer, dense_layers
from kvasir.checkpoints.label_heads import label_head
from kvasir.checkpoints.read import config_from
from kvasir.checkpoints.tensors import weight_of
from kvasir.core.errors import ModelError
from kvasir.formats.decode import bytes_of, decode, values_of
from kvasir.formats.types import FORMATS, TensorInfo
from kvasir.models.spec import ModelConfig
from kvasir.weights.quantization.integers import is_sorted
from kvasir.weights.source import ModelSource

Rows = NDArray[np.float64]
_ROWS = 64
"""Of a matrix that are multiplied at a time: a copy of all in f64 would be twice its size."""


def _gelu(x: Rows) -> Rows:
    return 0.5 * x * (1.0 + np.array([math.erf(each) for each in (x / math.sqrt(2.0)).tolist()]))


_ACTS: Mapping[str, Callable[[Rows], Rows]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "gelu": _gelu,
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}
"""By ``dense_layers.ACTS``."""


class Dense:
    """A dense layer behind the pooling: sums in f64, in an order of their own that is no machine's
    but NumPy's (pairs of halves), so that they are the same on each."""

    def __init__(self, layer: DenseLayer) -> None:
        self._weight = values_of(layer.weight)
        self._bias = 0.0 if layer.bias is None else values_of(layer.bias).astype(np.float64)
        self._act = _ACTS[layer.act]
        self._norm = None if layer.norm is None else values_of(layer.norm).astype(np.float64)
        shift = layer.norm_bias
        self._shift = 0.0 if shift is None else values_of(shift).astype(np.float64)
        self._eps = layer.eps

    def __call__(self, x: Rows) -> Rows:
        """f64 [outputs] of f64 [inputs]."""
        return self.whole(list(self.parts(x)))

    def parts(self, x: Rows) -> Iterator[Rows]:
        """What ``whole`` makes the outputs of; each takes a fraction of a millisecond, all of a
        large layer several."""
        for i in range(0, len(self._weight), _ROWS):
            yield (self._weight[i : i + _ROWS] * x).sum(axis=1)

    def whole(self, parts: Sequence[Rows]) -> Rows:
        y: Rows = self._act(np.concatenate(parts) + self._bias)
        if self._norm is None:
            return y
        y = y - y.mean()
        normed: Rows = y / math.sqrt(float((y * y).mean()) + self._eps) * self._norm + self._shift
        return normed


class Head(msgspec.Struct, frozen=True):
    """``rows``: f64 [labels, size], of stored values that f32 holds."""

    rows: Rows
    bias: tuple[float, ...]
    softcap: float = 0.0
    scale: float = 1.0
    """Before the soft cap."""
    before: Dense | None = None

    def logits(self, vector: bytes) -> tuple[float, ...]:
        """Of f32 [size] as bytes. Each is a sum that is rounded once: products of two f32 are exact
        in f64, and no order of adding matters. (Behind a dense layer it is one of f64.)"""
        x = _numbers(vector)
        if self.before is not None:
            x = self.before(x)
        sums = [math.fsum((row * x).tolist()) for row in self.rows]
        found = [self.scale * s + bias for s, bias in zip(sums, self.bias, strict=True)]
        cap = self.softcap
        return tuple(cap * math.tanh(x / cap) for x in found) if cap else tuple(found)


class Heads:
    """Of one model; its file stays mapped."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._known: dict[tuple[int, ...], Head] = {}

    def named(self, name: tuple[int, ...] | Literal["classifier"]) -> Head:
        """Of these tokens, or the model's own. Raises ModelError."""
        return self.classifier if name == "classifier" else self.of_tokens(name)

    @cached_property
    def classifier(self) -> Head:
        """Of the model's own labels. Raises ModelError where it has none."""
        found = label_head(self._source, self._config)
        if found is None:
            raise ModelError(f"{self._source.path}: no tensor is a head for labels")
        rows = values_of(found.rows).astype(np.float64)
        bias = [0.0] * len(rows) if found.bias is None else values_of(found.bias).tolist()
        before = None if found.before is None else Dense(found.before)
        return Head(rows, tuple(bias), before=before)

    @cached_property
    def dense(self) -> tuple[Dense, ...]:
        """What a vector goes through before it is told. Raises ModelError."""
        return tuple(map(Dense, dense_layers(self._source, self._config)))

    @cached_property
    def _config(self) -> ModelConfig:
        return config_from(self._source)

    def told(self, vector: bytes) -> Generator[None, None, bytes]:
        """``through`` its dense layers; yields after every fraction of a millisecond."""
        x = _numbers(vector)
        for layer in self.dense:
            parts = []
            for part in layer.parts(x):
                parts.append(part)
                yield
            x = layer.whole(parts)
        return _bytes(x)

    def of_tokens(self, ids: Sequence[int]) -> Head:
        """The rows of the language head of a few tokens: logits as if they were drawn next. Those
        of the last ids that were asked for are kept. Raises ModelError."""
        key = tuple(ids)
        if key not in self._known:
            self._known = {key: self._read(key)}
        return self._known[key]

    def _read(self, ids: tuple[int, ...]) -> Head:
        config = self._config
        shape = config.vocab_size, config.hidden_size
        weight = weight_of(config)("embed" if config.tied else "lm_head", shape)
        tensor = self._source.tensors.get(weight.sources[0])
        if tensor is None or tensor.shape != shape or weight.transforms or is_sorted(tensor):
            raise ModelError(f"{self._source.path}: no language head of {shape} to read rows of")
        rows = np.stack([_row(tensor, i) for i in ids])
        return Head(
            rows.astype(np.float64), (0.0,) * len(ids), config.final_softcap, config.logit_scale
        )


def through(layers: Sequence[Dense], vector: bytes) -> bytes:
    """f32 [outputs of the last] of f32 [inputs of the first], as bytes."""
    x = _numbers(vector)
    for layer in layers:
        x = layer(x)
    return _bytes(x)


def _bytes(values: Rows) -> bytes:
    """f32 as bytes, of f64."""
    return values.astype("<f4").tobytes()


def _numbers(vector: bytes) -> Rows:
    """f64, of f32 as bytes."""
    return np.frombuffer(vector, "<f4").astype(np.float64)


def _row(tensor: TensorInfo, index: int) -> NDArray[np.float32]:
    n_bytes = FORMATS[tensor.format].n_bytes(tensor.shape[1:])
    return decode(tensor.format, bytes_of(tensor)[index * n_bytes : (index + 1) * n_bytes])
