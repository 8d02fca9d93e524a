"""How far one tenant reaches into what others get: shares of the engine, and how much longer their
steps become. Counted in tokens and modelled seconds, on virtual time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec
import pytest
from msgspec.structs import replace

from kvasir.core.request import EngineRequest, Standing
from kvasir.sched.clocks import MAX_IDLE, Tenant
from kvasir.sched.queues import PLACELESS_SECONDS
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.cost import SCORE_SECONDS, CostModel, Costs, Load
from kvasir.timing.pace import AUTO_SHARE, MIN_CHUNK_TOKENS, make_tenant_pace
from tests.sharing import STEP_SECONDS, TOKEN_SECONDS, request, sizes
from tests.sharing import Load as VirtualLoad


def spent(load: VirtualLoad, ids: Iterable[int]) -> float:
    return sum(load.spent[i] for i in ids)


# Shares


@pytest.mark.parametrize(("is_key", "low", "high"), [(True, 0.8, 1.25), (False, 6, 14)])
def test_inventing_users_buys_no_share(is_key: bool, low: float, high: float) -> None:
    """Of a key. Where users are the tenants, because there are no keys, ten of them get ten
    shares."""
    load = VirtualLoad(sizes())

    def of_user(i: int) -> EngineRequest:
        user = f"user {i % 10}"
        return request(i, tenant="a", user=user) if is_key else request(i, tenant=user)

    load.add(of_user(i) for i in range(600))
    load.add(request(i, tenant="b") for i in range(600, 1200))
    for _ in range(400):
        load.step()
    assert low < spent(load, range(600)) / spent(load, range(600, 1200)) < high


def test_users_take_turns_in_the_line_of_their_key() -> None:
    load = VirtualLoad(sizes())
    load.add(request(i, tenant="a", user="busy") for i in range(200))
    for _ in range(30):
        load.step()
    load.add(request(i, tenant="a", user="late") for i in range(200, 220))
    load.run()
    n_before = sum(load.ended[i] < load.ended[219] for i in range(200))
    assert 20 < n_before < 90, "as many as it had started, and one for one after that"


def test_without_users_the_line_is_the_order_of_arrival() -> None:
    load = VirtualLoad(sizes())
    load.add(request(i, n_prompt=16 + i * 37 % 50, tenant="a") for i in range(100))
    load.run()
    assert sorted(load.first_token, key=load.first_token.__getitem__) == list(range(100))


def test_users_that_are_remembered_are_bounded_and_who_was_idle_saved_nothing() -> None:
    tenant = Tenant("a", 1.0, 0.0)
    assert [tenant.turn_of("u", 10) for _ in range(3)] == [0, 10, 20]
    tenant.tag = 15.0
    assert tenant.turn_of("idle", 10) == 15
    for i in range(5000):
        tenant.turn_of(f"user {i}", 10)
    assert len(tenant._users) == MAX_IDLE


# Steps


COSTS = Costs(step=STEP_SECONDS, row=1e-9, token=TOKEN_SECONDS, pair=1e-12, entry=1e-12)


def test_all_prompts_of_a_tenant_have_the_room_of_one() -> None:
    pace = make_tenant_pace(CostModel(COSTS), None)
    assert pace is not None
    decodes = Load(rows=96, tokens=96)
    alone = pace.costs.step_seconds(decodes)
    first = pace.share_room(decodes, 0.0, 0, 512)
    assert first == int(AUTO_SHARE * alone / TOKEN_SECONDS) == 70
    used = pace.costs.chunk_seconds(30, 0)
    assert pace.share_room(decodes, used, 0, 512) == 40
    assert pace.share_room(decodes, pace.costs.chunk_seconds(70, 0), 0, 512) == 0
    few = Load(rows=1, tokens=1)
    assert pace.share_room(few, 0.0, 0, 512) == MIN_CHUNK_TOKENS
    dear = make_tenant_pace(CostModel(COSTS._replace(pair=1.0)), 0.0)
    assert dear is not None
    assert dear.share_room(few, 0.0, 10_000, 512) == 1
    assert dear.share_room(few, 1e-9, 10_000, 512) == 0
    assert make_tenant_pace(CostModel(COSTS), 0.2) is None


class Steps:
    """Of a scheduler whose cost model is right from the beginning; whose tokens each computed."""

    def __init__(self, **changes: object) -> None:
        config = replace(sizes(n_slots=64, n_blocks=4096, budget=512), **changes)  # type: ignore[arg-type]
        self.load = VirtualLoad(config)
        self.load.scheduler = Scheduler(config, costs=CostModel(COSTS))
        self.tenants: dict[int, str] = {}

    def add(self, requests: Iterable[EngineRequest]) -> None:
        found = list(requests)
        self.tenants |= {one.id: one.standing.tenant for one in found}
        self.load.add(found)

    def step(self) -> tuple[float, dict[str, int]]:
        """How many times as long as its rows of one token alone it took, and the tokens of chunks
        by tenant."""
        plan = self.load.step()
        assert plan is not None
        chunks: dict[str, int] = defaultdict(int)
        for row in plan.rows:
            if row.out_index == 0:
                chunks[self.tenants[self.load.slots[row.slot]]] += len(row.tokens)
        n_decodes = plan.n_tokens - sum(chunks.values())
        alone = seconds(n_decodes)
        return seconds(plan.n_tokens) / alone, dict(chunks)

    def stream(self, tenant: str, n: int, first: int) -> None:
        """So many streams that have begun."""
        self.add(request(first + i, 8, 900, tenant=tenant) for i in range(n))
        for _ in range(6):
            self.step()


def seconds(n_tokens: int) -> float:
    return STEP_SECONDS + TOKEN_SECONDS * n_tokens


def prompts(tenant: str, n: int, **params: object) -> list[EngineRequest]:
    return [with_params(request(i, 400, 4, tenant=tenant), **params) for i in range(n)]


def with_params(asked: EngineRequest, **changes: object) -> EngineRequest:
    params = msgspec.structs.replace(asked.params, **changes)
    return msgspec.structs.replace(asked, params=params)


def longest(steps: Steps, n: int = 60) -> tuple[float, int]:
    """The most that a step was stretched, and the largest sum of one tenant's chunks."""
    found = [steps.step() for _ in range(n)]
    most = max((sum(chunks.values()) for _, chunks in found), default=0)
    return max(ratio for ratio, _ in found), most


FLOODS: dict[str, Callable[[], list[EngineRequest]]] = {
    "prompts": lambda: prompts("flood", 60),
    "echoed prompts": lambda: prompts("flood", 60, n_prompt_logprobs=5),
    "logprobs": lambda: prompts("flood", 60, n_logprobs=20),
    "short prompts": lambda: [request(i, 2, 4, tenant="flood") for i in range(500)],
    "users": lambda: [request(i, 400, 4, tenant="flood", user=str(i)) for i in range(60)],
    "another class": lambda: [
        msgspec.structs.replace(one, standing=Standing("batch", "flood"))
        for one in prompts("flood", 60)
    ],
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_stretches_the_steps_of_others_as_one_prompt_may(flood: str) -> None:
    steps = Steps()
    steps.stream("other", 24, 1000)
    steps.add(FLOODS[flood]())
    ratio, _ = longest(steps)
    # outputs of the flood are rows of one token too: those are streams as well
    assert 1.5 < ratio <= 1 + AUTO_SHARE + 0.05
    steps.load.scheduler.check()


def test_scores_of_prompts_count_in_the_room_of_their_tenant() -> None:
    """A row of logits for each token, and twenty alternatives to tell."""
    dear = COSTS._replace(row=5e-4)
    rooms = []
    for n_logprobs in (-1, 20):
        steps = Steps()
        scheduler = Scheduler(steps.load.config, costs=CostModel(dear))
        scheduler.costs.observe = lambda load, seconds: None  # type: ignore[method-assign]
        steps.load.scheduler = scheduler
        steps.stream("other", 40, 1000)
        steps.add(prompts("flood", 20, n_prompt_logprobs=n_logprobs))
        rooms.append(sum(steps.step()[1].get("flood", 0) for _ in range(4)))
    plain, scored = rooms
    each = TOKEN_SECONDS + 5e-4 + 21 * SCORE_SECONDS
    assert scored == pytest.approx(plain * TOKEN_SECONDS / each, rel=0.1)


def test_two_tenants_stretch_them_twice_and_neither_takes_the_others_room() -> None:
    steps = Steps()
    steps.stream("other", 40, 1000)
    steps.add(prompts("a", 20))
    steps.add(request(100 + i, 400, 4, tenant="b") for i in range(20))
    for _ in range(40):
        ratio, chunks = steps.step()
        assert ratio <= 1 + 2 * AUTO_SHARE + 0.05
        room = AUTO_SHARE * seconds(40 + 24) / TOKEN_SECONDS
        assert max(chunks.values(), default=0) <= room
    n = {tenant: sum(steps.load.spent[i] for i in ids)
         for tenant, ids in (("a", range(20)), ("b", range(100, 120)))}  # fmt: skip
    assert 0.8 < n["a"] / n["b"] < 1.25


def test_a_tenant_stretches_its_own_streams_as_it_likes() -> None:
    """And everybody's where a target says how long a step may be."""
    for tenant, changes in (("flood", {}), ("other", {"itl_target": 10.0})):
        steps = Steps(**changes)
        steps.stream(tenant, 16, 1000)
        steps.add(prompts("flood", 60))
        _, most = longest(steps, 3)
        assert most > 400


def test_prompts_beside_a_flood_all_end() -> None:
    steps = Steps()
    steps.stream("other", 4, 1000)
    steps.add(prompts("flood", 80))
    steps.load.run()
    assert len(steps.load.ended) == 84


# First tokens


def first_of_other(load: VirtualLoad, n_prompt: int = 8) -> float:
    """Seconds until the first token of a request of another tenant that comes now."""
    load.add([request(9000, n_prompt, 4, tenant="other")])
    while 9000 not in load.first_token:
        load.step()
        load.scheduler.check()
    (waited,) = load.waits([9000])
    return waited


@pytest.mark.parametrize("n_outputs", [100, 900])
def test_nobody_waits_for_the_ends_of_anothers_answers(n_outputs: int) -> None:
    """A tenant that has no slot takes one of who has most, after a second."""
    load = VirtualLoad(sizes(n_slots=64, n_blocks=4096, budget=512))
    load.add([request(8000, 8, 1, tenant="other")])
    load.add(request(i, 8, n_outputs, tenant="flood") for i in range(100))
    for _ in range(3):
        load.step()
    step = seconds(64)
    assert PLACELESS_SECONDS <= first_of_other(load) <= PLACELESS_SECONDS + 3 * step < 90 * step
    assert load.scheduler.stats().n_preemptions == 1
    load.run()
    assert len(load.ended) == 102


def test_a_tenant_takes_one_slot_of_who_has_several() -> None:
    load = VirtualLoad(sizes(n_slots=4, n_blocks=4096, budget=512))
    for i, tenant in enumerate(["a", "a", "b", "c"]):
        load.add([request(i, 8, 900, tenant=tenant)])
        load.step()
    load.add(request(10 + i, 8, 900, tenant=tenant) for i, tenant in enumerate("dedb"))
    while load.now < 3 * PLACELESS_SECONDS:
        load.step()
        load.scheduler.check()
    running = [x.standing.tenant for x in load.scheduler.running]
    assert sorted(running) == ["a", "b", "c", "d"], "each has one: who waits has to wait"
    assert load.scheduler.stats().n_preemptions == 1


def test_a_tenant_takes_a_slot_of_a_higher_class_that_had_more_than_its_share() -> None:
    """Whoever calls all of his requests urgent has ten of fifteen parts of the engine, and no more
    than that; his class had more than its share when nobody of another ran."""
    load = VirtualLoad(sizes(n_slots=8, n_blocks=4096, budget=512))
    load.add([request(8000, 8, 1, tenant="other")])
    load.add(request(i, 8, 900, tenant="flood", priority_class="realtime") for i in range(40))
    for _ in range(3):
        load.step()
    step = seconds(8)
    assert PLACELESS_SECONDS <= first_of_other(load) <= PLACELESS_SECONDS + 3 * step
    assert load.scheduler.stats().n_preemptions == 1


def test_a_class_that_was_idle_has_saved_nothing_up() -> None:
    """What ran meanwhile was of another class, and long: a flood that calls itself urgent then has
    its share from now on, and no more of it for that."""
    load = VirtualLoad(sizes(n_slots=8, n_blocks=4096, budget=512))
    load.add(request(i, 8, 900, tenant="flood") for i in range(8))
    load.run()
    load.add(request(100 + i, 8, 900, tenant="flood", priority_class="realtime") for i in range(40))
    for _ in range(3):
        load.step()
    assert PLACELESS_SECONDS <= first_of_other(load) <= PLACELESS_SECONDS + 3 * seconds(8)


def test_a_tenant_that_was_idle_has_saved_nothing_up() -> None:
    """It takes turns with one that ran alone before, for long."""
    load = VirtualLoad(sizes(n_slots=1, n_blocks=4096, budget=512))
    load.add([request(0, 8, 900, tenant="a")])
    load.run()
    load.add(request(100 + i, 8, 8, tenant="a") for i in range(10))
    load.add(request(200 + i, 8, 8, tenant="b") for i in range(10))
    while len(load.ended) < 11:
        load.step()
    assert 4 <= sum(100 <= i < 200 for i in load.ended) <= 6


def test_the_lowest_class_is_given_no_slot_of_a_higher_one() -> None:
    load = VirtualLoad(sizes(n_slots=4, n_blocks=4096, budget=512))
    load.add([request(8000, 8, 1, tenant="other")])
    load.add(request(i, 8, 400, tenant="flood") for i in range(4))
    for _ in range(3):
        load.step()
    late = request(20, 8, 4, tenant="other", priority_class="batch")
    load.add([late])
    load.run()
    assert load.first_token[20] >= min(load.ended[i] for i in range(4))


@pytest.mark.parametrize("has_streams", [False, True])
def test_a_first_token_shares_its_step_with_little_of_anothers_prompts(has_streams: bool) -> None:
    steps = Steps()
    if has_streams:
        steps.stream("flood", 24, 1000)
    else:
        steps.add([request(8000, 8, 1, tenant="other")])
    steps.add(prompts("flood", 60))
    for _ in range(2):
        assert steps.step()[1]["flood"] > 400
    steps.add([request(9000, 8, 4, tenant="other")])
    _, chunks = steps.step()
    rooms = {False: MIN_CHUNK_TOKENS, True: AUTO_SHARE * seconds(26) / TOKEN_SECONDS}
    assert chunks["other"] == 8 and 0 < chunks["flood"] <= rooms[has_streams]


# Charges


def clock_of(scheduler: Scheduler, tenant: str) -> float:
    (own,) = [x for x in scheduler._order._clocks.classes if tenant in x.tenants]  # type: ignore[attr-defined]
    return float(own.tenants[tenant].time)


def charged(asked: Iterable[EngineRequest], n_steps: int = 10**6) -> float:
    """Modelled seconds that the tenant pays; what runs after so many steps is cancelled."""
    steps = Steps()
    found = list(asked)
    steps.add(found)
    scheduler = steps.load.scheduler
    while scheduler.has_work and n_steps:
        steps.load.step()
        n_steps -= 1
    paid_before = clock_of(scheduler, found[0].standing.tenant)
    for one in found:
        scheduler.cancel(one.id)
    paid = clock_of(scheduler, found[0].standing.tenant)
    assert paid >= paid_before
    return paid


def test_who_asks_for_more_pays_for_more() -> None:
    plain = charged([request(0, 64, 16, tenant="a")])
    assert plain == pytest.approx(80 * TOKEN_SECONDS, rel=0.05)
    several = charged(request(i, 64, 16, tenant="a") for i in range(4))
    assert several == pytest.approx(4 * plain, rel=0.01)
    with_logprobs = charged([with_params(request(0, 64, 16, tenant="a"), n_logprobs=20)])
    assert with_logprobs == pytest.approx(plain + 15 * 21 * 4e-6, rel=0.01)
    dear = COSTS._replace(row=1e-3)
    echoed = with_params(request(0, 64, 1, tenant="a"), n_prompt_logprobs=5)
    steps = Steps()
    steps.load.scheduler = scheduler = Scheduler(steps.load.config, costs=CostModel(dear))
    scheduler.costs.observe = lambda load, seconds: None  # type: ignore[method-assign]
    steps.add([echoed])
    steps.load.run()
    assert clock_of(scheduler, "a") == pytest.approx(64 * 1.5e-3 + 64 * 6 * 4e-6, rel=0.05)


def test_who_leaves_pays_for_what_was_computed() -> None:
    """Not for what was not: a prompt that was cut short, outputs that nobody drew."""
    whole = charged([request(0, 400, 100, tenant="a")])
    left = charged([request(0, 400, 100, tenant="a")], n_steps=11)
    assert left == pytest.approx(410 * TOKEN_SECONDS, rel=0.02)
    assert left < whole
    many = charged((request(i, 400, 100, tenant="a") for i in range(8)), n_steps=1)
    assert many == pytest.approx(512 * TOKEN_SECONDS, rel=0.02)
