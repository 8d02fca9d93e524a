"""Who gives way when blocks, slots or seconds of a step run out: tenants first, then what each of
them says of its own requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvasir.config.resolved import SharingConfig
from kvasir.core.plan import StepPlan
from kvasir.core.request import EngineRequest, PriorityClass
from kvasir.timing.pace import AUTO_SHARE
from tests.sharing import Load, request, sizes
from tests.unit.test_reach import Steps

FIRST = -(1 << 31)
STREAM = 1000
N_STREAM = 60


def flood(load: Load, n: int, make: Callable[[int], EngineRequest]) -> Iterator[StepPlan]:
    """Steps, before each of which ``n`` requests of the flood are there."""
    n_sent = 0
    while True:
        n_there = n_sent - sum(i < STREAM for i in load.ended)
        load.add(make(n_sent + i) for i in range(n - n_there))
        n_sent += n - n_there
        plan = load.step()
        assert plan is not None
        load.scheduler.check()
        yield plan


def rows_of(load: Load, plan: StepPlan, i: int) -> int:
    return sum(load.slots[row.slot] == i for row in plan.rows)


def steps_beside(priority: int, *, before: int, cache: bool = False) -> int:
    """Steps from the arrival of a stream to its end, beside eight requests whose blocks do not
    fit, which have begun ``before`` steps earlier."""
    load = Load(sizes(n_slots=10, n_blocks=12, budget=256, cache=cache))

    def make(i: int) -> EngineRequest:
        return request(i, 16, 40, tenant="flood", priority=priority)

    steps = flood(load, 8, make)
    for _ in range(before):
        next(steps)
    load.add([request(STREAM, 16, N_STREAM, tenant="other")])
    for n, _ in enumerate(steps, 1):
        if STREAM in load.ended:
            assert load.scheduler.stats().n_preemptions > 0
            return n
    raise AssertionError


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("before", [0, 30])
@pytest.mark.parametrize("priority", [FIRST, 0, -FIRST - 1])
def test_a_stream_keeps_its_blocks_beside_a_flood_of_any_priority(
    priority: int, before: int, cache: bool
) -> None:
    assert steps_beside(priority, before=before, cache=cache) <= N_STREAM + 10


def test_priority_chooses_among_the_requests_of_its_tenant() -> None:
    """The flood's tenant holds most: of its requests those of the highest number give way."""
    load = Load(sizes(n_slots=10, n_blocks=12, budget=256))
    load.add(request(i, 16, 40, tenant="flood", priority=i % 2) for i in range(6))
    load.add([request(STREAM, 16, N_STREAM, tenant="other", priority=7)])
    load.run()
    assert load.scheduler.stats().n_preemptions > 0
    assert sorted(range(6), key=load.ended.__getitem__) == [0, 2, 4, 1, 3, 5]


def test_who_holds_most_for_its_weight_gives_way() -> None:
    def ended(weight: float) -> tuple[float, float]:
        sharing = SharingConfig(tenant_weights=(("a", weight),))
        load = Load(sizes(n_slots=4, n_blocks=10, budget=256, sharing=sharing))
        load.add(request(i, 40, 60, tenant="ab"[i % 2]) for i in (0, 1))
        load.run()
        assert load.scheduler.stats().n_preemptions == 1
        return load.ended[0], load.ended[1]

    a, b = ended(9.0)
    assert a < b
    load = Load(sizes(n_slots=4, n_blocks=10, budget=256))
    load.add([request(0, 60, 40, tenant="b"), request(1, 20, 80, tenant="a")])
    load.add([request(2, 20, 80, tenant="a")])
    load.run()
    assert load.ended[0] < load.ended[2], "a holds more, in two requests"


def test_the_oldest_always_advances() -> None:
    """Though it holds the most; its tenant has no other request that could give way."""
    load = Load(sizes(n_slots=8, n_blocks=12, budget=64))
    load.add([request(STREAM, 100, 80, tenant="large")])
    n_left_out = 0
    for plan in flood(load, 6, lambda i: request(i, 8, 30, tenant="small")):
        if STREAM in load.ended:
            break
        n_left_out += not rows_of(load, plan, STREAM)
    assert n_left_out == 0


@pytest.mark.parametrize("priority_class", ["realtime", "standard"])
def test_other_classes_get_slots_beside_a_flood(priority_class: PriorityClass) -> None:
    """Whatever is waiting in the class of the flood: it has its share, not all."""
    load = Load(sizes(n_slots=8, n_blocks=256, budget=64))
    load.add(request(i, 16, 16, tenant="flood", priority_class=priority_class) for i in range(600))
    for _ in range(40):
        load.step()
    load.add([request(STREAM, 8, 16, tenant="other")])
    load.add([request(STREAM + 1, 8, 16, tenant="patient", priority_class="batch")])
    for _ in range(400):
        load.step()
    waits = [load.first_token[STREAM + i] - load.arrived[STREAM + i] for i in range(2)]
    assert waits[0] <= 40 * 6e-3, "the next slot is its"
    assert STREAM + 1 in load.ended


def test_realtime_prompts_stretch_the_steps_of_others_as_one_prompt_may() -> None:
    steps = Steps()
    steps.stream("other", 24, STREAM)
    steps.add(request(i, 400, 1, tenant="flood", priority_class="realtime") for i in range(60))
    ratios = [steps.step()[0] for _ in range(60)]
    assert 1.5 < max(ratios) <= 1 + AUTO_SHARE + 0.05
