"""Checks of operands, for shape rules."""

from __future__ import annotations

from kvasir.ir.program import Dim, Value, Weight


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


def require_heads(value: Value, n_heads: int, head_dim: int) -> None:
    require_type(value, "f32")
    columns, expected = width(value), f"{n_heads} x {head_dim}"
    fits = columns == n_heads * head_dim
    require(fits, f"{value.name} has {columns} columns, expected {expected}")
