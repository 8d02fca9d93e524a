"""Properties are tried on the same cases in every run; ``make explore`` looks for new ones. Of a
test that is ``sampled`` some cases run; ``make test-long`` runs all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.forms import IS_LONG, IS_WIDE

# No bounds of times: a busy machine may stand still in any case.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", patient, derandomize=True)
settings.register_profile("new", patient, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("KVASIR_CASES", "same"))

# No test asks a real hub for a model: nothing answers there.
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"

# A shell that starts tests in the background makes them, and what they start, ignore SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the cases of a test marked ``sampled(n)`` keep the diagonals, those whose places in their
    parameters add up to a multiple of n: every value of each occurs, beside changing others, where
    the places of these others add up to n different sums."""
    if IS_LONG:
        return
    places: dict[tuple[str, str], dict[int, int]] = {}
    kept, left = [], []
    for item in items:
        marker, total = item.get_closest_marker("sampled"), 0
        if marker is not None:
            for name, value in item.callspec.params.items():  # type: ignore[attr-defined]
                known = places.setdefault((item.nodeid.partition("[")[0], name), {})
                total += known.setdefault(id(value), len(known))
        is_kept = marker is None or total % marker.args[0] == 0
        (kept if is_kept else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


CPU_BUDGET = 40.0
"""Seconds of CPU time of a test's own process in the short form; the dearest takes 10 of an AVX-512
core, 2.4 times as many of the slowest machine that ran it. None where real weights are given."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    began = time.process_time()
    yield
    used = time.process_time() - began
    if used > CPU_BUDGET and not IS_WIDE and "KVASIR_WEIGHTS" not in os.environ:
        pytest.fail(
            f"it took {used:.0f} s of CPU time, the budget of a test in make test is "
            f"{CPU_BUDGET:.0f} s: give it a shorter form (tests/forms.py)"
        )
