"""Shapes of tensors, from those of the weights that steps make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvasir.ir.program import Transform
from kvasir.weights.transforms import (
    DELTA_ROWS,
    GROUPED_QKV,
    HALVES_OF_HEADS,
    MATRICES,
    QKV,
    SCAN_ROWS,
)

_VECTORS: Mapping[str, Callable[..., tuple[int, ...]]] = MappingProxyType(
    {
        "repeated": lambda k, *args: (1,),
        "column": lambda k: (k, 1),
        "flat": lambda k, n: (n, k // n),
    }
)
"""Shapes of what becomes a vector of k."""

_OTHERS: Mapping[str, Callable[..., tuple[int, ...]]] = MappingProxyType(
    {
        "conv_taps": lambda shape: (shape[1], 1, shape[0]),
        **dict.fromkeys(MATRICES, lambda shape, i, n: (n, *shape)),
        "patch_rows": lambda shape, patch: (*shape[:-1], shape[-1] // patch**2, patch, patch),
        "cube_rows": lambda shape, m, patch: (
            *(shape[0], shape[1] // (m * patch**2)),
            *(m, patch, patch),
        ),
        "frame_rows": lambda shape, m, patch: (
            *(m, shape[0], shape[1] // (m * patch**2)),
            *(patch, patch),
        ),
        "padded_heads": lambda shape, n_heads, n, padded: (n_heads * n, *shape[1:]),
        "padded_columns": lambda shape, n_heads, n, padded: (shape[0], n_heads * n),
    }
)
"""Shapes of kernels of convolutions, of several matrices, and of padded heads, before."""


def _grouped_rows(name: str, which: int, first: int, second: int, third: int) -> int:
    """All rows of a tensor that holds its parts group by group."""
    is_qkv = name in GROUPED_QKV
    return (first + 2 * second) * third if is_qkv else first * 2 * (second + third)


def shape_before(shape: tuple[int, ...], transforms: tuple[Transform, ...]) -> tuple[int, ...]:
    """Of the tensor that becomes a weight of ``shape``."""
    for transform in reversed(transforms):
        shape = _before(shape, transform.name, *map(int, transform.args))
    return shape


def _before(shape: tuple[int, ...], name: str, *args: int) -> tuple[int, ...]:
    """The step of that name."""
    *many, k = shape
    if name.endswith("_half"):
        shape = (*many[:-1], 2 * many[-1], k)
    elif name == "inputs_last":
        shape = (*many[:-1], k, many[-1])
    elif name.endswith("_outputs"):
        shape = (many[0], k, 2 * many[1]) if len(many) == 2 else (*many, 2 * k)
    elif name == "joined":
        shape = (args[0], shape[0] // args[0], *shape[1:])
    elif name in _VECTORS:
        shape = _VECTORS[name](k, *args)
    elif name in (*QKV, *SCAN_ROWS, "last_rows"):
        shape = (args[2], *shape[1:])
    elif name in ("head_first", "head_last", *HALVES_OF_HEADS):
        shape = (shape[0] // args[1] * args[2], *shape[1:])
    elif name in ("head_keys", "head_values"):
        shape = (shape[0] * args[2], shape[1] if name == "head_keys" else shape[2])
    elif name in (*GROUPED_QKV, *DELTA_ROWS):
        shape = (_grouped_rows(name, *args), *shape[1:])
    elif name in _OTHERS:
        shape = _OTHERS[name](shape, *args)
    if name in ("transposed", "taps") or name in QKV[3:]:
        shape = shape[::-1]
    return shape
