"""Limits of the native thread pool; whatever computes on it proves that all threads run."""

from __future__ import annotations

import pytest

from kvasir import _native


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_pools_start_and_stop(n_threads: int, pin: bool) -> None:
    for _ in range(20):
        assert _native.Pool(n_threads, pin).size == n_threads


@pytest.mark.parametrize("n_threads", [0, -1, 1025])
def test_impossible_sizes_are_refused(n_threads: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 1024 threads, not {n_threads}"):
        _native.Pool(n_threads)
