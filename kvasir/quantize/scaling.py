"""Scales of inputs that make rounding hurt less, chosen among candidates by what rounding does to
the outputs on a calibration text.

AWQ (Lin et al. 2023) makes weights larger that meet large inputs; SmoothQuant (Xiao et al. 2022)
makes large inputs smaller that would be rounded with a token's others. The first candidate is 1 for
all, which is plain rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from kvasir.quantize.compressed import Int8Rows
from kvasir.quantize.groups import Groups
from kvasir.quantize.statistics import Inputs, Vector
from kvasir.quantize.target import Matrix, finite_scales

_STEPS = 10
"""Of a grid of exponents."""
_LEAST = np.float32(1e-4)
"""Of the largest of all: inputs and weights that hardly occur."""


class ScalesInputs(Protocol):
    """A method whose matrices are rounded after their columns were scaled."""

    def candidates(self, inputs: Inputs, matrices: Sequence[Matrix]) -> Iterator[Vector]:
        """Scales [K] of the columns of ``matrices``, of any size."""
        ...

    def loss(self, inputs: Inputs, matrix: Matrix, scales: Vector) -> float:
        """The sum of squares by which the outputs differ, over the text."""
        ...


class AwqGroups(Groups, frozen=True):
    """As ``Groups`` stores them, columns scaled before."""

    @property
    def name(self) -> str:
        return f"{self.said}, by AWQ"

    def candidates(self, inputs: Inputs, matrices: Sequence[Matrix]) -> Iterator[Vector]:
        """mean|x|^a, and mean|x|^a over the columns' mean share of their groups' peaks^(1-a)."""
        of_x = _bounded(inputs.mean)
        of_w = _bounded(_mean([_share(w, self.group) for w in matrices]))
        for i in range(1, _STEPS + 1):
            a = np.float32(i / _STEPS)
            yield of_x**a
            yield of_x**a / of_w ** (1 - a)

    def loss(self, inputs: Inputs, matrix: Matrix, scales: Vector) -> float:
        return _weighted(self.restored(matrix * scales) / scales - matrix, inputs)


class SmoothInt8(Int8Rows, frozen=True):
    """As ``Int8Rows`` stores them, columns scaled before."""

    name: str = "int8, a scale for each output, by SmoothQuant"

    def candidates(self, inputs: Inputs, matrices: Sequence[Matrix]) -> Iterator[Vector]:
        """max|x|^a over max|w|^(1-a)."""
        of_x = _bounded(inputs.peak)
        of_w = _bounded(np.max([np.abs(w).max(axis=0) for w in matrices], axis=0))
        for i in range(1, _STEPS):
            a = np.float32(i / _STEPS)
            yield of_x**a / of_w ** (1 - a)

    def loss(self, inputs: Inputs, matrix: Matrix, scales: Vector) -> float:
        """With inputs that are int8, too, a scale for each token: of those of the sample."""
        weights = self.restored(matrix * scales)
        x = inputs.sample / scales
        steps = finite_scales(2 * np.abs(x).max(axis=1, keepdims=True) / np.float32(255))
        errors = (np.rint(x / steps).clip(-128, 127) * steps - x) @ weights.T
        of_inputs = float(np.square(errors).sum(dtype=np.float64)) * inputs.n / len(x)
        return _weighted(weights / scales - matrix, inputs) + of_inputs


def chosen(
    method: ScalesInputs, inputs: Inputs, matrices: Sequence[Matrix], heads: tuple[int, int] | None
) -> Vector:
    """[K], of the candidate with the least loss; the largest times the smallest is 1. ``heads``: so
    many heads of queries read the same values, of that size, and share their scales."""
    best: Vector = np.ones(len(inputs.peak), np.float32)
    least = sum(method.loss(inputs, w, best) for w in matrices)
    for found in method.candidates(inputs, matrices):
        tied = found if heads is None else _tied(found, *heads)
        scales = tied / np.sqrt(tied.max() * tied.min())
        loss = sum(method.loss(inputs, w, scales) for w in matrices)
        if loss < least:
            best, least = scales, loss
    return best


def _weighted(error: Matrix, inputs: Inputs) -> float:
    """tr(E x^T x E^T)."""
    return float(((error @ inputs.gram) * error).sum(dtype=np.float64))


def _tied(scales: Vector, n_heads: int, size: int) -> Vector:
    logs = np.log(scales).reshape(-1, n_heads, size).mean(axis=1, keepdims=True)
    return np.asarray(np.exp(np.repeat(logs, n_heads, axis=1)).reshape(-1), np.float32)


def _share(w: Matrix, group: int) -> Vector:
    """[K]: the mean of |w| over the largest of its group."""
    sizes = np.abs(w).reshape(len(w), -1, group)
    peaks = finite_scales(sizes.max(axis=2, keepdims=True))
    return np.asarray((sizes / peaks).mean(axis=0).reshape(-1), np.float32)


def _mean(rows: Sequence[Vector]) -> Vector:
    return np.asarray(np.mean(rows, axis=0), np.float32)


def _bounded(sizes: Vector) -> Vector:
    return np.asarray(np.maximum(sizes, _LEAST * sizes.max() or np.float32(1)), np.float32)
