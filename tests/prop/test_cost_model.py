"""Whatever is measured, the cost model stays sane."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvasir.timing.cost import BOUNDS, CostModel, Load, chunk_load

COUNTS = st.integers(0, 10**6)
SECONDS = st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-9, 1e6)
LOADS = st.builds(Load, COUNTS, COUNTS, COUNTS, COUNTS)
STEPS = st.lists(st.tuples(LOADS, SECONDS), max_size=60)


def trained(steps: list[tuple[Load, float]]) -> CostModel:
    model = CostModel()
    for load, seconds in steps:
        model.observe(load, seconds)
    return model


@settings(max_examples=80)
@given(STEPS, LOADS, LOADS)
def test_costs_are_bounded_monotone_and_deterministic(
    steps: list[tuple[Load, float]], load: Load, more: Load
) -> None:
    model = trained(steps)
    low, high = BOUNDS
    assert all(low <= cost <= high for cost in model.costs)
    assert 0 < model.step_seconds(load) <= model.step_seconds(load.plus(more))
    assert model.costs == trained(steps).costs


@settings(max_examples=80)
@example([(Load(0, 3996, 0, 0), 5e-324)], Load(), 0, 0, 0.0)
@given(STEPS, LOADS, st.integers(0, 10**5), st.integers(0, 600), st.floats(0, 1e4))
def test_the_chunk_that_fits_is_maximal(
    steps: list[tuple[Load, float]], load: Load, start: int, n_most: int, seconds: float
) -> None:
    model = trained(steps)
    n = model.fit(load, start, n_most, seconds)
    assert 0 <= n <= n_most
    room = seconds - model.step_seconds(load)
    assert not n or model.chunk_seconds(n, start) <= room
    assert n == n_most or model.chunk_seconds(n + 1, start) > room


@settings(max_examples=40)
@given(
    st.floats(1e-6, 1e3),
    st.lists(st.tuples(st.integers(1, 64), st.integers(0, 4000)), min_size=1, max_size=8),
)
def test_a_steady_machine_is_learnt_from_any_prior(
    seconds: float, rows: list[tuple[int, int]]
) -> None:
    load = Load()
    for n_tokens, start in rows:
        load = load.plus(chunk_load(n_tokens, start))
    model = trained([(load, seconds)] * 40)
    assert 0.9 * seconds < model.step_seconds(load) < 1.1 * seconds
