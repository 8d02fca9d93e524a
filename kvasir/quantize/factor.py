"""Cholesky factors whose bits do not depend on how many threads multiply: blocks in a fixed order,
of which only products of matrices are left to the library."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix64 = NDArray[np.float64]
_BLOCK = 64


def inverse_factor(full: Matrix64) -> Matrix64:
    """Upper U [K, K] with U^T U the inverse of ``full``. Raises LinAlgError where it is not
    positive definite."""
    # of the reversed matrix, so that full = V V^T with V upper, and U = V^-1
    lower = _cholesky(np.ascontiguousarray(full[::-1, ::-1]))
    return np.ascontiguousarray(_inverse(lower)[::-1, ::-1])


def _cholesky(a: Matrix64) -> Matrix64:
    """Lower, in place of ``a``; what is above its diagonal is left as it is."""
    n = len(a)
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        corner = a[begin:end, begin:end]
        _corner(corner)
        below = a[end:, begin:end] @ _inverse_corner(corner).T
        a[end:, begin:end] = below
        a[end:, end:] -= below @ below.T
    return a


def _inverse(lower: Matrix64) -> Matrix64:
    found = np.zeros_like(lower)
    for begin in range(0, len(lower), _BLOCK):
        end = min(begin + _BLOCK, len(lower))
        corner = _inverse_corner(lower[begin:end, begin:end])
        left = lower[begin:end, :begin] @ found[:begin, :begin]
        found[begin:end, :begin] = -(corner @ left)
        found[begin:end, begin:end] = corner
    return found


def _corner(a: Matrix64) -> None:
    """Cholesky of a small matrix, in its place, column by column."""
    for j in range(len(a)):
        pivot = a[j, j]
        if not pivot > 0:
            raise np.linalg.LinAlgError(f"pivot {pivot:g}")
        a[j:, j] /= np.sqrt(pivot)
        column = a[j + 1 :, j]
        a[j + 1 :, j + 1 :] -= column[:, None] * column


def _inverse_corner(lower: Matrix64) -> Matrix64:
    found = np.eye(len(lower))
    for j in range(len(lower)):
        found[j] -= (lower[j, :j, None] * found[:j]).sum(axis=0)
        found[j] /= lower[j, j]
    return found
