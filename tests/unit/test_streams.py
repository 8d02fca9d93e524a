"""Long contexts of one tenant beside streams of others, in virtual time."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from kvasir.core.request import PriorityClass
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.cost import CostModel
from kvasir.timing.pace import AUTO_SHARE, MIN_CHUNK_TOKENS, MIN_SHARE
from tests.sharing import STEP_SECONDS, TOKEN_SECONDS, Load, request, sizes
from tests.unit.test_reach import COSTS

ENTRY_SECONDS = 2e-6
N_FLOOD, CONTEXT = 40, 600
STREAM = 1000


def beside_contexts(
    tenant: str,
    *,
    flood: PriorityClass = "standard",
    stream: PriorityClass = "standard",
    context: int = CONTEXT,
) -> Load:
    """A stream of ``tenant``, and 40 of another one with long contexts, all of which have begun."""
    config = replace(sizes(n_slots=64, n_blocks=4096, budget=512), itl_target=None)
    load = Load(config, pair_seconds=ENTRY_SECONDS)
    load.scheduler = Scheduler(config, costs=CostModel(COSTS._replace(pair=ENTRY_SECONDS)))
    load.add(request(i, context, 400, tenant="flood", priority_class=flood) for i in range(N_FLOOD))
    while len(load.first_token) < N_FLOOD:
        load.step()
    load.add([request(STREAM, 8, 200, tenant=tenant, priority_class=stream)])
    while STREAM not in load.first_token:
        load.step()
    return load


def step(load: Load) -> tuple[float, list[int]]:
    """How many times as long as one of as many rows without contexts, and whose rows it has."""
    before, n = load.now, len(load.scheduler.running)
    plan = load.step()
    assert plan is not None
    seconds = STEP_SECONDS + TOKEN_SECONDS * n
    return (load.now - before) / seconds, [load.slots[row.slot] for row in plan.rows]


def test_contexts_of_a_tenant_stretch_the_steps_of_others_by_a_share() -> None:
    load = beside_contexts("other")
    rows: Counter[int] = Counter()
    for _ in range(60):
        ratio, ids = step(load)
        assert ratio <= 1 + MIN_SHARE + 0.05
        assert STREAM in ids
        rows.update(ids)
    flood = [rows[i] for i in range(N_FLOOD)]
    assert max(flood) - min(flood) <= 2, "they take turns"
    assert min(flood) >= 5
    load.run()


def test_prompts_beside_long_contexts_of_their_tenant_still_advance() -> None:
    load = beside_contexts("other")
    load.add([request(N_FLOOD, 600, 1, tenant="flood")])
    while N_FLOOD not in load.ended:
        ratio, ids = step(load)
        assert ratio <= 1 + MIN_SHARE + AUTO_SHARE + 0.05
        assert STREAM in ids, "it ends first"


def test_prompts_beside_contexts_that_fit_have_what_these_leave() -> None:
    """Both together stretch a step no longer than contexts and the shortest chunk may."""
    load = beside_contexts("other", context=40)
    load.add(request(N_FLOOD + i, 400, 1, tenant="flood") for i in range(4))
    most = MIN_CHUNK_TOKENS * TOKEN_SECONDS / (STEP_SECONDS + TOKEN_SECONDS * (N_FLOOD + 1))
    ratios = []
    while N_FLOOD not in load.ended:
        ratio, ids = step(load)
        ratios.append(ratio)
        assert STREAM in ids
    assert 1.6 < max(ratios) <= 1 + MIN_SHARE + most + 0.02


@pytest.mark.parametrize(
    ("tenant", "flood", "stream"),
    [("flood", "standard", "standard"), ("other", "standard", "batch")],
)
def test_own_streams_and_those_of_batch_requests_wait_for_all(
    tenant: str, flood: PriorityClass, stream: PriorityClass
) -> None:
    load = beside_contexts(tenant, flood=flood, stream=stream)
    _, ids = step(load)
    assert len(ids) == N_FLOOD + 1
