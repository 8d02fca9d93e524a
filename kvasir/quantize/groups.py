"""Integers in groups of a row, rounded to the nearest.

Of b bits they take scale = 2 max|w| / (2^b - 1) when they are symmetric, codes from -2^(b-1) to
2^(b-1) - 1; else scale = (max - min) / (2^b - 1), both moved to include 0, and the zero is
-min / scale, rounded. Scales are rounded up to the type that the container has; codes are those of
the scale as it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvasir.quantize.containers import PACK_QUANTIZED, CodedRows, Container, GroupForm, rounded_up
from kvasir.quantize.target import AnyRows, MadeTensor, Matrix, Scheme


class Grid(NamedTuple):
    """Of the groups of rows [n, groups]: a weight is scale * (code - zero)."""

    scales: Matrix
    zeros: Matrix


class Groups(AnyRows, frozen=True):
    """Integers of ``bits`` bits, a scale for each ``group`` elements of a row."""

    bits: int
    group: int
    is_symmetric: bool
    container: Container = PACK_QUANTIZED

    @property
    def name(self) -> str:
        return self.said

    @property
    def said(self) -> str:
        """The form of codes and scales."""
        kind = "symmetric" if self.is_symmetric else "with zeros"
        place = "" if self.container is PACK_QUANTIZED else f", as {self.container.name}"
        return f"{self.bits} bits in groups of {self.group}, {kind}{place}"

    @property
    def format(self) -> str:
        return self.container.format

    @property
    def form(self) -> GroupForm:
        return GroupForm(self.bits, self.group, self.is_symmetric, self.container.scales)

    def config(self, kept: Sequence[str]) -> Scheme:
        return self.container.config(self.form, kept)

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        return self.container.targets(tensor, shape, self.form)

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def grid(self, rows: Matrix) -> Grid:
        """Scales and zeros as they are stored."""
        runs, kind = rows.reshape(len(rows), -1, self.group), self.container.scales
        if self.is_symmetric:
            scales = rounded_up(2 * np.abs(runs).max(axis=2) / np.float32(self.top), kind)
            return Grid(scales, np.full(scales.shape, 1 << (self.bits - 1), np.float32))
        low = np.minimum(runs.min(axis=2), 0)
        scales = rounded_up((np.maximum(runs.max(axis=2), 0) - low) / np.float32(self.top), kind)
        return Grid(scales, np.rint(-low / scales).clip(0, self.top))

    def codes(self, rows: Matrix, grid: Grid) -> Matrix:
        """The nearest, [rows, K]."""
        runs = rows.reshape(len(rows), -1, self.group)
        codes = np.rint(runs / grid.scales[..., None]) + grid.zeros[..., None]
        return np.asarray(codes.clip(0, self.top).reshape(len(rows), -1), np.float32)

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        grid = self.grid(rows)
        return self.packed(self.codes(rows, grid), grid)

    def restored(self, rows: Matrix) -> Matrix:
        """What is decoded of ``rows`` that were encoded."""
        grid = self.grid(rows)
        codes = self.codes(rows, grid).reshape(len(rows), -1, self.group)
        return ((codes - grid.zeros[..., None]) * grid.scales[..., None]).reshape(rows.shape)

    def packed(self, codes: Matrix, grid: Grid) -> tuple[bytes, ...]:
        """``codes``: [rows, K], whole numbers from 0 to ``top``."""
        whole = codes.astype(np.uint32), grid.scales, grid.zeros.astype(np.uint32)
        return self.container.packed(CodedRows(*whole), self.form)
