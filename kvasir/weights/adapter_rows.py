"""Rows of weights that an adapter is merged into (``weights/adapter.py``)."""

from __future__ import annotations

import numpy as np

from kvasir.formats.decode import Floats, values_of
from kvasir.formats.types import TensorInfo

_ROWS = 256
"""That are made at a time."""


def merged_rows(
    plain: TensorInfo, down: TensorInfo, up: TensorInfo, scale: float, of_rows: bool
) -> Floats:
    """plain [n, k] + scale (up @ down), f32; ``of_rows``: both are of embeddings, transposed.

    Each rank is added in f64 in turn, without fused products, and the sum rounded once: the same
    bits on every machine, which no library's product of matrices promises."""
    out = values_of(plain)
    a, b = (values_of(x).astype(np.float64) for x in (down, up))
    if of_rows:
        a, b = b.T, a.T
    for first in range(0, len(out), _ROWS):
        part = b[first : first + _ROWS]
        total = np.zeros((len(part), out.shape[1]))
        for rank in range(len(a)):
            total += part[:, rank, None] * a[rank]
        total *= scale
        out[first : first + _ROWS] = out[first : first + _ROWS] + total
    return out
