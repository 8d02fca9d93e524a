"""The cost model: what it charges, what it learns, what it does not fall for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepResult
from kvasir.core.request import EngineRequest
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.cost import BOUNDS, CostModel, Costs, Load, chunk_load
from tests.sizes import config_of

PRIOR = Costs(step=2e-3, row=1e-4, token=1e-3, pair=1e-6, entry=1e-5)


def test_a_chunk_counts_pairs_and_entries() -> None:
    assert chunk_load(1, 99) == Load(rows=1, tokens=1, pairs=100, entries=100)
    assert chunk_load(4, 0) == Load(1, 4, 1 + 2 + 3 + 4, 4)
    assert chunk_load(4, 10) == Load(1, 4, 11 + 12 + 13 + 14, 14)
    assert Load(1, 2, 3, 4).plus(Load(10, 20, 30, 40)) == Load(11, 22, 33, 44)


def test_the_prior_is_charged_before_anything_is_measured() -> None:
    model = CostModel(PRIOR)
    assert model.chunk_seconds(4, 10) == pytest.approx(1e-4 + 4e-3 + 50e-6 + 14e-5)
    assert model.step_seconds(chunk_load(4, 10)) == pytest.approx(2e-3 + model.chunk_seconds(4, 10))
    assert model.step_seconds(Load()) == 2e-3


def test_a_chunk_that_fits_is_the_longest_that_does() -> None:
    model = CostModel(Costs(step=2e-3, row=1e-9, token=1e-3, pair=1e-12, entry=1e-12))
    decodes = Load(rows=3, tokens=3)
    assert model.fit(decodes, 0, 100, 0.0251) == 20
    assert model.fit(decodes, 0, 7, 0.0251) == 7
    assert model.fit(decodes, 0, 100, 0.005) == 0
    assert model.fit(decodes, 0, 0, 1.0) == 0


def test_a_long_context_shortens_the_chunk() -> None:
    model = CostModel(PRIOR)
    sizes = [model.fit(Load(), start, 512, 0.1) for start in (0, 1000, 4000, 8000)]
    assert sizes == [92, 43, 11, 1]


def measured(load: Load) -> float:
    """A machine quite different from the prior."""
    return 5e-3 + 2e-4 * load.rows + 1e-4 * load.tokens + 3e-8 * load.pairs + 1e-7 * load.entries


def decodes(n_rows: int, context: int) -> Load:
    return Load(n_rows, n_rows, n_rows * context, n_rows * context)


MIXED = tuple(
    decodes(n_rows, context).plus(chunk_load(chunk, start)) if chunk else decodes(n_rows, context)
    for n_rows, context, chunk, start in (
        (1, 100, 0, 0), (16, 500, 0, 0), (4, 300, 64, 0), (16, 600, 496, 1024),
        (64, 200, 0, 0), (1, 4000, 0, 0), (8, 100, 128, 7000), (2, 50, 510, 0),
    )
)  # fmt: skip


def test_measured_steps_correct_the_prior() -> None:
    model = CostModel(PRIOR)
    for _ in range(20):
        for load in MIXED:
            model.observe(load, measured(load))
    for load in MIXED:
        assert model.step_seconds(load) == pytest.approx(measured(load), rel=0.1)


def test_a_stall_hardly_matters() -> None:
    model = CostModel(PRIOR)
    for load in MIXED * 10:
        model.observe(load, measured(load))
    before = model.step_seconds(MIXED[0])
    model.observe(MIXED[0], 100 * measured(MIXED[0]))
    assert before <= model.step_seconds(MIXED[0]) < 1.3 * before


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_a_machine_that_changed_is_believed_soon(factor: float) -> None:
    model = CostModel(PRIOR)
    for load in MIXED * 10:
        model.observe(load, measured(load))
    for _ in range(10):
        model.observe(MIXED[1], factor * measured(MIXED[1]))
    assert model.step_seconds(MIXED[1]) == pytest.approx(factor * measured(MIXED[1]), rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_what_nobody_measured_teaches_nothing(seconds: float) -> None:
    model = CostModel(PRIOR)
    model.observe(MIXED[0], seconds)
    assert model.costs == PRIOR


def test_constants_stay_within_their_bounds() -> None:
    low, high = BOUNDS
    assert CostModel(Costs(-1.0, 0.0, 1e9, 1.0, 1.0)).costs == Costs(low, low, high, 1.0, 1.0)


def test_the_scheduler_observes_its_steps() -> None:
    config = config_of(128, 4, 32, 16, 16)
    made = Scheduler(config, costs=CostModel(PRIOR))
    params = TokenParams(seed=0, max_tokens=4)
    for i in range(2):
        made.add(EngineRequest(i, tuple(range(10)), replace(params, seed=i)))
    plan = made.plan()
    assert plan is not None
    made.commit(plan, StepResult((RowOutput(7),) * plan.n_logits, 1.0))
    expected = CostModel(PRIOR)
    expected.observe(chunk_load(10, 0).plus(chunk_load(10, 0)), 1.0)
    assert made.costs.costs == expected.costs != PRIOR
