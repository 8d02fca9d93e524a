"""Properties are tried on the same cases in every run; ``make explore`` looks for new ones. Of a
test that is ``sampled`` some cases run; ``make test-long`` runs all."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("KVASIR_CASES", "same"))

# A shell that starts tests in the background makes them, and what they start, ignore SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the cases of a test marked ``sampled(n)`` keep each n-th: with a count of the inner
    parameter that n does not divide, each of its values stands beside another of the outer's."""
    if os.environ.get("KVASIR_LONG", "") not in ("", "0"):
        return
    seen: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        marker, name = item.get_closest_marker("sampled"), item.nodeid.partition("[")[0]
        is_kept = marker is None or seen[name] % marker.args[0] == 0
        seen[name] += 1
        (kept if is_kept else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
