"""What linears of a model read of a calibration text."""

from __future__ import annotations

from collections.abc import Collection
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
