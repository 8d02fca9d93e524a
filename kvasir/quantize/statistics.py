"""What linears of a model read of a calibration text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvasir.quantize.target import Matrix

Vector = NDArray[np.float32]
"""[K]"""


class Inputs(NamedTuple):
    """Of the rows x [T, K] that a linear reads."""

    gram: Matrix
    """x^T x, [K, K]; [0, 0] where it is not asked for."""
    squares: Vector
    """Mean of x^2."""
    mean: Vector
    """Of |x|."""
    peak: Vector
    """The largest |x|."""
    sample: Matrix
    """Some of the rows, evenly over the text."""
    n: int
    """T."""


class Statistics(Protocol):
    """Of a model and a text."""

    @property
    def digest(self) -> str:
        """Names the text."""
        ...

    def inputs(self, tensor: str) -> Inputs | None:
        """Of the rows that meet a matrix, the same value for matrices that meet the same rows; None
        for one of which they are not known. Each matrix is asked for once, in the order in which
        they were announced."""
        ...

    def knows(self, tensor: str) -> bool:
        """Whether it has, or had, its inputs."""
        ...

    def forget(self, tensors: Collection[str]) -> None:
        """That nobody will ask for."""
        ...


class ByText:
    """Matrices, and what a text says of their inputs, which is gathered when it is asked for: when
    all else is known to be possible."""

    def __init__(
        self, tensors: Sequence[str], calibrate: Callable[[Sequence[str]], Statistics]
    ) -> None:
        """``tensors`` in the order in which they are written."""
        self._tensors, self._calibrate = tensors, calibrate

    @cached_property
    def statistics(self) -> Statistics:
        return self._calibrate(self._tensors)

    @property
    def rounded(self) -> tuple[str, ...]:
        """Those of whose inputs nothing is known: their weights alone count."""
        return tuple(x for x in self._tensors if not self.statistics.knows(x))

    def skip(self, done: Collection[str]) -> None:
        """Tensors that are written."""
        self.statistics.forget(done)
