"""What others notice of a long prompt, a flood or a shared prefix, in virtual time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvasir.config.resolved import SharingConfig
from kvasir.core.request import PriorityClass
from kvasir.sched.queues import MAX_WAITS
from tests.sharing import STEP_SECONDS, TOKEN_SECONDS, Load, request, sizes
from tests.sizes import changed

LONG = 100_000
CHATS = 16


def chat(load: Load, n_steps: int) -> list[float]:
    """Users who ask anew as soon as they have an answer; gaps between their tokens, ascending."""
    n_asked = len(load.arrived)
    for _ in range(n_steps):
        while n_asked - sum(i <= n_asked for i in load.ended) < CHATS:
            n_asked += 1
            load.add([request(n_asked, n_prompt=24, n_outputs=30 + 7 * n_asked % 60)])
        load.step()
    return sorted(load.gaps)


def p99(values: list[float]) -> float:
    return values[len(values) * 99 // 100]


def long_prompts() -> Load:
    config = changed(
        sizes(n_slots=CHATS + 4, budget=512, cache=True, n_blocks=LONG // 16 + 256),
        max_model_len=LONG + 16,
        itl_target=0.0,
    )
    return Load(config, pair_seconds=1e-9)


def test_chats_hardly_notice_a_prompt_of_a_hundred_thousand_tokens() -> None:
    quiet = chat(long_prompts(), 1000)
    load = long_prompts()
    chat(load, 100)
    load.gaps.clear()
    load.add([request(10**6, n_prompt=LONG, n_outputs=1)])
    loaded = chat(load, 3000)
    assert p99(loaded) <= 2 * p99(quiet)
    assert load.spent[10**6] > 0.3 * load.now  # and it advances


@pytest.mark.parametrize(("n_waiting", "at_most"), [(0, 2.0), (100, 30.0)])
def test_who_waits_counts_against_who_streams(n_waiting: int, at_most: float) -> None:
    load = Load(replace(sizes(n_slots=24, n_blocks=2000, budget=512), itl_target=0.0))
    load.add(request(i, n_outputs=900) for i in range(16))
    for _ in range(40):
        load.step()
    alone = load.gaps[-1]
    load.gaps.clear()
    load.add(request(100 + i, n_prompt=300) for i in range(1 + n_waiting))
    load.step()
    load.step()
    assert load.gaps[-1] <= at_most * alone
    assert load.gaps[-1] > at_most * alone / 2


def test_a_realtime_prompt_does_not_keep_the_pace_of_batch_streams() -> None:
    load = Load(replace(sizes(n_slots=4, budget=128), itl_target=0.0))
    load.add(request(i, n_outputs=900, priority_class="batch") for i in range(3))
    for _ in range(40):
        load.step()
    load.add([request(9, n_prompt=128, priority_class="realtime")])
    plan = load.step()
    assert plan is not None
    assert [len(row.tokens) for row in plan.rows] == [128]


def test_realtime_keeps_its_first_token_and_batch_its_throughput() -> None:
    def run(*, with_realtime: bool) -> tuple[Load, int]:
        config = sizes(n_slots=8, budget=64, cache=True)
        load = Load(replace(config, itl_target=0.0))
        load.add(request(i, n_prompt=64, n_outputs=96, priority_class="batch") for i in range(200))
        n = 0
        while load.now < 8.0:
            if with_realtime and load.now > 0.4 * n:
                load.add([request(1000 + n, n_outputs=16, priority_class="realtime")])
                n += 1
            load.step()
        return load, n

    load, n = run(with_realtime=True)
    alone, _ = run(with_realtime=False)
    step = STEP_SECONDS + 64 * TOKEN_SECONDS
    assert load.waits(range(1000, 1000 + n - 1))[-1] <= 2 * step
    batch = sum(load.spent[i] for i in range(200))
    assert batch >= 0.8 * sum(alone.spent[i] for i in range(200))
    assert load.scheduler.stats().n_preemptions > 0


def test_a_burst_of_realtime_requests_starts_at_once() -> None:
    load = Load(sizes(n_slots=8, budget=256, cache=True))
    load.add(request(i, n_outputs=200, priority_class="batch") for i in range(20))
    load.step()
    load.step()
    load.add(request(100 + i, n_prompt=32, priority_class="realtime") for i in range(6))
    plan = load.step()
    assert plan is not None
    assert len(plan.opens) == 6


def test_a_shared_prefix_does_not_make_realtime_wait_for_batch() -> None:
    """The batch request computes what the realtime one needs, and others hold it up."""
    first_token: dict[PriorityClass, float] = {}
    classes: tuple[PriorityClass, ...] = ("batch", "realtime")
    for producer in classes:
        load = Load(sizes(n_slots=16, budget=64, cache=True))
        load.add([request(0, n_prompt=600, first=7, priority_class=producer)])
        load.step()
        load.add(request(i, n_prompt=200, n_outputs=4) for i in range(1, 60))
        for _ in range(4):
            load.step()
        load.add([request(99, n_prompt=600, first=7, n_outputs=2, priority_class="realtime")])
        load.run()
        first_token[producer] = load.first_token[99] - load.arrived[99]
    own = 600 * TOKEN_SECONDS + (600 // 64 + 2) * STEP_SECONDS
    assert first_token["batch"] <= 1.5 * own
    assert first_token["realtime"] < first_token["batch"]


def test_a_wait_for_what_an_equal_computes_is_bounded() -> None:
    config = sizes(n_slots=4, n_blocks=2000, budget=17, cache=True)
    load = Load(changed(config, max_model_len=16_000))
    load.add(
        [request(0, n_prompt=15_000, first=7), request(1, n_prompt=15_000, first=7, tenant="b")]
    )
    n_plans = 0
    while load.scheduler.stats().n_running < 2:
        load.step()
        n_plans += 1
    assert n_plans <= MAX_WAITS + 2


def test_without_the_prefix_cache_realtime_waits_for_a_while() -> None:
    patient = SharingConfig(preemption_threshold=0.1)
    load = Load(sizes(n_slots=2, sharing=patient))
    load.add(request(i, n_outputs=300, priority_class="batch") for i in range(2))
    load.step()
    load.add([request(9, priority_class="realtime")])
    load.run()
    assert 0.1 <= load.waits([9])[0] < 0.15
