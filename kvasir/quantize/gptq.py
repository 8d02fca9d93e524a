"""GPTQ: what rounding a column changes of a linear's outputs is taken out of the columns behind it.

Frantar et al. 2023, in the form that its successors settled on: the columns whose inputs are
largest come first, and scales are those of plain rounding, so that groups stay where they are.
Rows are independent of each other, and all arithmetic is float32 in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import ModelError
from kvasir.formats.types import TensorInfo
from kvasir.quantize.factor import inverse_factor
from kvasir.quantize.groups import Groups
from kvasir.quantize.statistics import ByText, Statistics
from kvasir.quantize.target import MadeTensor, Matrix, RowMethod

_DAMPED = 0.01
"""Of the mean of the diagonal, added to it: the least that inputs which hardly occur count."""
_BLOCK = 128
"""Columns that are corrected one by one; those behind a block all at once."""


class Factor(NamedTuple):
    """Of an inverse of X^T X: U^T U, its rows and columns in another order."""

    order: NDArray[np.int64]
    """Inputs, the largest first."""
    upper: Matrix
    """[K, K]"""


def factor_of(gram: Matrix) -> Factor:
    """Raises ModelError for numbers that are not finite, and where there is none."""
    diagonal = np.diagonal(gram).astype(np.float64)
    if not np.isfinite(gram).all():
        raise ModelError("a linear meets numbers that are not finite: the checkpoint is damaged")
    order = np.argsort(-diagonal, kind="stable")
    full = gram[np.ix_(order, order)].astype(np.float64)
    full[np.diag_indices_from(full)] += _DAMPED * diagonal.mean() or 1.0
    try:
        upper = inverse_factor(full)
    except np.linalg.LinAlgError as error:
        raise ModelError(
            f"what {len(full)} inputs of a linear met cannot be inverted: take a longer or more "
            "varied --calibration, or --method rtn"
        ) from error
    return Factor(order, upper.astype(np.float32))


def corrected_codes(rows: Matrix, factor: Factor, method: Groups) -> tuple[bytes, ...]:
    """``rows`` [n, K] as ``method`` stores them."""
    grid = method.grid(rows)
    scales, zeros = grid.scales.T, grid.zeros.T
    groups, upper = factor.order // method.group, factor.upper
    left = np.ascontiguousarray(rows[:, factor.order].T)
    codes = np.empty_like(left)
    for begin in range(0, len(left), _BLOCK):
        end = min(begin + _BLOCK, len(left))
        errors = np.empty_like(left[begin:end])
        for j in range(begin, end):
            scale, zero = scales[groups[j]], zeros[groups[j]]
            codes[j] = (np.rint(left[j] / scale) + zero).clip(0, method.top)
            error = (left[j] - (codes[j] - zero) * scale) / upper[j, j]
            left[j + 1 : end] -= upper[j, j + 1 : end, None] * error
            errors[j - begin] = error
        left[end:] -= upper[begin:end, end:].T @ errors
    found = np.empty_like(rows)
    found[:, factor.order] = codes.T
    return method.packed(found, grid)


class GptqGroups(Groups, frozen=True):
    """As ``Groups`` stores them, with codes that a calibration text chose."""

    @property
    def name(self) -> str:
        return f"{self.said}, by GPTQ"


class Calibrated(ByText):
    """``GptqGroups`` with the statistics of a text."""

    def __init__(
        self,
        method: GptqGroups,
        quantized: Sequence[str],
        calibrate: Callable[[Sequence[str]], Statistics],
    ) -> None:
        super().__init__(quantized, calibrate)
        self.method = method
        self._latest: list[tuple[Matrix, Factor]] = []

    def of(self, info: TensorInfo) -> RowMethod | None:
        """None for tensors that stay as they are."""
        return CalibratedTensor(self, info.name) if info.name in self._tensors else None

    def factor(self, tensor: str) -> Factor | None:
        inputs = self.statistics.inputs(tensor)
        if inputs is None:
            return None
        gram = inputs.gram
        factor = next((x for known, x in self._latest if known is gram), None) or factor_of(gram)
        others = [(known, x) for known, x in self._latest if known is not gram]
        self._latest = [*others[-1:], (gram, factor)]  # of a file's k, o, q and v three read one
        return factor


class CalibratedTensor:
    """The row method of one matrix, whose runs of rows come one after the other."""

    def __init__(self, calibrated: Calibrated, tensor: str) -> None:
        self._calibrated = calibrated
        self._tensor = tensor
        self._found: list[Factor | None] = []

    @property
    def name(self) -> str:
        return self._calibrated.method.name

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        return self._calibrated.method.targets(tensor, shape)

    def begin(self) -> None:
        self._found = [self._calibrated.factor(self._tensor)]

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        method, factor = self._calibrated.method, self._found[0]
        return method.encode(rows) if factor is None else corrected_codes(rows, factor, method)

    def end(self) -> None:
        self._found = []
