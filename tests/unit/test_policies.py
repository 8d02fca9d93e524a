"""Who is served when: classes, tenants, priorities, preemption; steps take virtual time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from kvasir.config.resolved import SharingConfig
from kvasir.core.errors import RequestError
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row
from kvasir.core.request import EngineRequest
from kvasir.exec.fake import FakeExecutor
from kvasir.kv.table import BlockTable
from kvasir.sched.clocks import Clocks
from kvasir.sched.fair import FairAccount
from kvasir.sched.request import new_request
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Draft, Known, Proposer
from kvasir.speculate.executor import ExecutorProposer
from kvasir.timing.cost import CostModel, chunk_load
from tests.sharing import Load, request, sizes
from tests.sizes import changed, config_of


def test_two_tenants_of_equal_weight_get_equal_shares_of_a_load_of_ten_to_one() -> None:
    load = Load(sizes())
    load.add(request(i, tenant="heavy") for i in range(400))
    load.add(request(400 + i, tenant="light") for i in range(40))
    while len([i for i in load.ended if i >= 400]) < 40:
        load.step()
    heavy = sum(load.spent[i] for i in range(400))
    light = sum(load.spent[i] for i in range(400, 440))
    jain = (heavy + light) ** 2 / (2 * (heavy**2 + light**2))
    assert jain >= 0.95
    alone = Load(sizes())
    alone.add(request(i) for i in range(40))
    alone.run()
    assert load.waits(range(400, 440))[-1] < 2.2 * alone.waits(range(40))[-1]
    load.run()


def test_a_tenant_that_comes_late_does_not_wait_for_the_queue_of_another() -> None:
    load = Load(sizes())
    load.add(request(i, tenant="heavy") for i in range(400))
    for _ in range(50):
        load.step()
    load.add([request(1000, tenant="light")])
    load.run()
    assert load.first_token[1000] - load.arrived[1000] < 0.5
    assert load.ended[1000] < sorted(load.ended.values())[200]


def test_a_tenant_cannot_save_up_by_being_idle() -> None:
    load = Load(sizes())
    load.add([request(0, tenant="late")])
    load.run()
    load.add(request(i, tenant="busy") for i in range(1, 200))
    for _ in range(300):
        load.step()
    before = sum(load.spent[i] for i in range(1, 200))
    load.add(request(i, tenant="late") for i in range(200, 400))
    for _ in range(200):
        load.step()
    busy = sum(load.spent[i] for i in range(1, 200)) - before
    late = sum(load.spent[i] for i in range(200, 400))
    assert 0.75 < busy / late < 1.33


TABLE = BlockTable((), 16)


class Says(Proposer):
    """For requests of even ids always the same."""

    def __init__(self, token: int) -> None:
        self._token = token

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [Draft(() if x.id % 2 else (self._token,) * k) for x in requests]


@pytest.mark.parametrize("token", [7, 8])
def test_drafts_are_charged_as_what_they_compute_drawn_or_not(token: int) -> None:
    """The first tenant is drafted for; every token drawn is 7. Answers of one length would end in
    the same step again and again, and who comes first then is what fits beside streams."""
    load = Load(changed(sizes(), max_draft_tokens=4), proposer=Says(token))
    load.add(request(i, n_outputs=33 + i // 2 * 7 % 31, tenant="ab"[i % 2]) for i in range(600))
    while not any(request_id > 200 for request_id in load.ended):
        load.step()
        load.scheduler.check()
    drafted, other = (sum(load.spent[i] for i in range(first, 600, 2)) for first in (0, 1))
    assert 0.9 < drafted / other < 1.1


def test_what_an_outdated_row_of_drafts_took_is_charged_whole() -> None:
    costs = CostModel()
    account, one = FairAccount(Clocks((1.0,), {}), costs), new_request(request(0), 0, 9, TABLE)
    row = Row(0, 10, (1, 2, 3, 4))
    account.verified(one, row, 0)
    load = chunk_load(4, 10)
    assert one.drafting.owed == costs.seconds(4, 4, load.pairs, load.entries)
    one.drafting.owed = 0.0
    account.verified(one, row, 4)
    assert one.drafting.owed == pytest.approx(costs.seconds(0, 0, 0, load.entries - load.pairs))
    account.owes(one, 3.0)
    assert one.drafting.owed > 2.9


def test_what_a_draft_model_took_is_of_those_it_was_asked_for() -> None:
    config = config_of(64, 4, 64, 64, 16, vocab_size=97, max_draft_tokens=2, adapts_drafts=False)
    made, executor = Scheduler(config, ExecutorProposer()), FakeExecutor(config.sizes, misses=0)
    for i, most in enumerate((1, 2, 0)):
        made.add(EngineRequest(i, (i, 5, 6), TokenParams(seed=i, max_tokens=9, max_drafts=most)))
    for _ in range(2):  # the prompts, and what the first outputs ask for
        plan = made.plan()
        assert plan is not None
        result = replace(executor.run(plan), seconds=4.0, draft_seconds=3.0)
        made.commit(plan, result)
    executor.close()
    assert [row.n_drafts for row in plan.rows].count(0) == 1
    found = [made.find(i) for i in range(3)]
    assert [x.drafting.owed for x in found if x is not None] == [1.0, 2.0, 0.0]


def test_weights_of_tenants_are_their_shares() -> None:
    load = Load(sizes(sharing=SharingConfig(tenant_weights=(("a", 3.0),))))
    load.add(request(i, tenant="ab"[i % 2]) for i in range(800))
    for _ in range(800):
        load.step()
    a, b = (sum(load.spent[i] for i in range(first, 800, 2)) for first in (0, 1))
    assert 2.6 < a / b < 3.4


def test_classes_share_ten_to_five_to_one() -> None:
    patient = SharingConfig(preemption_threshold=1e9)
    load = Load(sizes(n_slots=16, budget=128, sharing=patient))
    names = ("realtime", "standard", "batch")
    load.add(request(i, priority_class=names[i % 3]) for i in range(3000))
    for _ in range(1000):
        load.step()
    realtime, standard, batch = (
        sum(load.spent[i] for i in range(first, 3000, 3)) for first in range(3)
    )
    assert 8.5 < realtime / batch < 11.5
    assert 4.2 < standard / batch < 5.8


def test_realtime_is_quick_under_a_flood_of_batch() -> None:
    load = Load(sizes(n_slots=8, n_blocks=64))
    load.add(request(i, n_prompt=64, n_outputs=120, priority_class="batch") for i in range(60))
    for i in range(40):
        for _ in range(10):
            load.step()
        load.add([request(100 + i, n_outputs=4, priority_class="realtime")])
    load.run()
    waits = load.waits(range(100, 140))
    assert waits[-1] < 0.1 + 4 * (2e-3 + 64 * 5e-4)
    assert load.scheduler.stats().n_preemptions > 0
    assert len(load.ended) == 100


def test_without_batch_requests_realtime_preempts_nobody() -> None:
    load = Load(sizes(n_slots=2))
    load.add(request(i, n_outputs=300) for i in range(2))
    load.step()
    load.add([request(9, priority_class="realtime")])
    load.run()
    assert load.scheduler.stats().n_preemptions == 0
    assert load.first_token[9] > min(load.ended[0], load.ended[1])


def test_a_lower_priority_number_goes_earlier() -> None:
    load = Load(sizes(n_slots=1))
    load.add(request(i, priority=5 - i) for i in range(6))
    load.run()
    assert sorted(load.ended, key=load.ended.__getitem__) == [5, 4, 3, 2, 1, 0]


def test_what_is_cached_goes_first_but_not_for_ever() -> None:
    load = Load(sizes(n_slots=1, cache=True))
    load.add([request(0, first=0)])
    load.run()
    load.add([request(1), *(request(i, first=0) for i in range(2, 40))])
    load.run()
    order = sorted(load.ended, key=load.ended.__getitem__)
    assert order[:3] == [0, 2, 3]
    assert 8 < order.index(1) <= 17


def test_small_requests_pass_one_that_does_not_fit_but_not_for_ever() -> None:
    load = Load(sizes(n_slots=8, n_blocks=40, budget=512))
    load.add([request(0, n_prompt=256, n_outputs=200)])
    load.step()
    load.add([request(1, n_prompt=500, n_outputs=2)])
    load.add(request(i, n_prompt=16, n_outputs=8) for i in range(2, 200))
    load.run()
    order = sorted(load.first_token, key=load.first_token.__getitem__)
    assert 8 < order.index(1) < 30


def test_a_long_prompt_does_not_take_every_step_from_other_tenants() -> None:
    load = Load(sizes(budget=32))
    load.add([request(0, n_prompt=1000, tenant="long")])
    load.step()
    load.add(request(i, n_prompt=20, tenant="chat") for i in range(1, 5))
    load.run()
    assert max(load.waits(range(1, 5))) < load.waits([0])[0] / 3


def test_first_come_first_served_knows_neither_tenants_nor_classes() -> None:
    load = Load(sizes(n_slots=1, sharing=SharingConfig(policy="fcfs")))
    load.add(request(i, tenant="ab"[i > 3]) for i in range(6))
    with pytest.raises(RequestError, match="priority_class has no effect"):
        load.scheduler.add(request(9, priority_class="batch"))
    with pytest.raises(RequestError, match="priority has no effect"):
        load.scheduler.add(request(9, priority=1))
    load.run()
    assert sorted(load.ended, key=load.ended.__getitem__) == list(range(6))


def test_a_static_batch_ends_before_the_next_starts() -> None:
    load = Load(sizes(n_slots=4, sharing=SharingConfig(policy="static")))
    load.add(request(i, n_outputs=4 + 40 * (i % 4 == 0)) for i in range(12))
    load.run()
    for first in (4, 8):
        starts = [load.first_token[i] for i in range(first, first + 4)]
        assert min(starts) > max(load.ended[i] for i in range(first))


def test_a_static_batch_fills_and_stays_closed_whoever_leaves_the_line() -> None:
    load = Load(sizes(n_slots=4, budget=256, sharing=SharingConfig(policy="static")))
    load.add(request(i, n_outputs=4 + 40 * (i == 0)) for i in range(9))
    load.step()
    assert load.scheduler.stats().n_running == 4
    while load.scheduler.stats().n_running > 1:
        load.step()
    assert load.scheduler.cancel(8)
    for _ in range(3):
        load.step()
        assert load.scheduler.stats().n_running == 1


def test_contiguous_blocks_are_taken_at_the_start() -> None:
    contiguous = SharingConfig(kv_policy="contiguous")
    load = Load(sizes(n_blocks=20, sharing=contiguous))
    load.add(request(i, n_prompt=16, n_outputs=145) for i in range(4))
    load.step()
    stats = load.scheduler.stats()
    assert (stats.n_running, stats.blocks_free) == (2, 0)
    load.run()
    assert load.scheduler.stats().n_preemptions == 0


def test_two_hundred_requests_of_sixty_percent_of_the_blocks_all_finish() -> None:
    load = Load(sizes(n_blocks=5, budget=512))
    load.add(request(i, n_prompt=17, n_outputs=31) for i in range(200))
    load.run()
    assert len(load.ended) == 200
    assert load.scheduler.stats().n_preemptions > 0


def test_exactly_enough_blocks_finish_and_one_less_is_refused() -> None:
    needed = request(0, n_prompt=100, n_outputs=61)
    load = Load(sizes(n_blocks=10))
    load.add([needed])
    load.run()
    assert load.ended.keys() == {0}
    with pytest.raises(RequestError, match="need 10 blocks of 16, there are 9"):
        Load(sizes(n_blocks=9)).add([needed])


def test_a_storm_of_cancellations_leaves_nothing_behind() -> None:
    load = Load(sizes())
    load.add(request(i, n_prompt=4, tenant=str(i % 100)) for i in range(10_000))
    for _ in range(3):
        load.step()
    began = time.process_time()
    for i in range(9_999, -1, -1):
        load.scheduler.cancel(i)
    assert time.process_time() - began < 1  # 10,000 in a second
    load.run()
    stats = load.scheduler.stats()
    assert (stats.n_waiting, stats.n_running, stats.blocks_free) == (0, 0, 256)


def test_tenants_without_number_do_not_slow_a_step() -> None:
    load = Load(sizes(n_slots=4))
    load.add(request(i, n_prompt=2, n_outputs=1, tenant=str(i)) for i in range(3000))
    load.add(request(i, n_prompt=2, n_outputs=1, tenant="again") for i in range(3000, 3010))
    while load.scheduler.has_work:
        load.step()
    assert load.ended.keys() == set(range(3010))


def test_whoever_does_not_fit_holds_up_the_line_of_first_come_first_served() -> None:
    config = config_of(256, 4, 256, 8, 16, sharing=SharingConfig(policy="fcfs"))
    made = Scheduler(config)
    for i, n_prompt in enumerate((80, 100, 10)):
        made.add(EngineRequest(i, (i, *[3] * (n_prompt - 1)), TokenParams(seed=i, max_tokens=4)))
    plan = made.plan()
    assert plan is not None
    assert len(plan.opens) == 1
    assert made.stats().n_waiting == 2, "the third one would fit, and is behind the second"
