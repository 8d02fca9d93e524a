"""What turns a vector into logits: a classifier of the model's own, or rows of its language head.

Few rows meet few vectors: they are read where answers are made, and no step waits for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import ModelError
from kvasir.formats.types import FORMATS, TensorInfo
from kvasir.models.read import config_from
from kvasir.models.tensors import CLASSIFIERS, weight_of
from kvasir.weights.source import ModelSource

Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Head:
    """``rows``: f64 [labels, size], of stored values that f32 holds."""

    rows: Rows
    bias: tuple[float, ...]
    softcap: float = 0.0
    scale: float = 1.0
    """Before the soft cap."""

    def logits(self, vector: bytes) -> tuple[float, ...]:
        """Of f32 [size] as bytes. Each is a sum that is rounded once: products of two f32 are exact
        in f64, and no order of adding matters."""
        x = np.frombuffer(vector, "<f4").astype(np.float64)
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
        tensors = self._source.tensors
        found = next((name for name in CLASSIFIERS if name in tensors), None)
        if found is None:
            raise ModelError(f"{self._source.path}: no tensor is a head for labels")
        rows = tensors[found].decode().astype(np.float64)
        bias = found.removesuffix("weight") + "bias"
        values = tensors[bias].decode().tolist() if bias in tensors else [0.0] * len(rows)
        return Head(rows, tuple(values))

    def of_tokens(self, ids: Sequence[int]) -> Head:
        """The rows of the language head of a few tokens: logits as if they were drawn next. Those
        of the last ids that were asked for are kept. Raises ModelError."""
        key = tuple(ids)
        if key not in self._known:
            self._known = {key: self._read(key)}
        return self._known[key]

    def _read(self, ids: tuple[int, ...]) -> Head:
        config = config_from(self._source)
        shape = config.vocab_size, config.hidden_size
        weight = weight_of(config)("embed" if config.tied else "lm_head", shape)
        tensor = self._source.tensors.get(weight.sources[0])
        if tensor is None or tensor.shape != shape or weight.transforms:
            raise ModelError(f"{self._source.path}: no language head of {shape} to read rows of")
        rows = np.stack([_row(tensor, i) for i in ids])
        return Head(
            rows.astype(np.float64), (0.0,) * len(ids), config.final_softcap, config.logit_scale
        )


def _row(tensor: TensorInfo, index: int) -> NDArray[np.float32]:
    form = FORMATS[tensor.format]
    n_bytes = form.n_bytes(tensor.shape[1:])
    return form.decode(tensor.data[index * n_bytes : (index + 1) * n_bytes])
