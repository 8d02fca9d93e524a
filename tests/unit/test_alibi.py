"""Slopes of ALiBi."""

from __future__ import annotations

import numpy as np
import pytest

from kvasir.models.alibi import alibi_slopes


@pytest.mark.parametrize("n_heads", [1, 2, 8, 16, 64])
def test_heads_of_a_power_of_two(n_heads: int) -> None:
    exact = [2.0 ** (-8 * h / n_heads) for h in range(1, n_heads + 1)]
    np.testing.assert_allclose(alibi_slopes(n_heads), exact, rtol=1e-7)


def test_others_take_every_other_of_twice_as_many() -> None:
    """Those of jina-embeddings-v2-base, as the paper's authors publish them."""
    exact = [2.0**-h for h in range(1, 9)] + [2.0 ** -(0.5 + h) for h in range(4)]
    np.testing.assert_allclose(alibi_slopes(12), exact, rtol=1e-7)
