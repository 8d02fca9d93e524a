"""What the scheduler does with layers that see a window only, read off its plans and pools."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from kvasir.config.kvgroups import window_blocks
from kvasir.core.drawn import Drawn
from kvasir.core.errors import ConfigError, KvasirError
from kvasir.core.groups import NO_BLOCK, STATE_WINDOW, KVGroup
from kvasir.core.params import TokenParams
from kvasir.core.plan import Copy, RowOutput, SlotOpen, StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.exec.checks import check_plan, check_states
from kvasir.exec.fake import FakeExecutor
from kvasir.ir.bundle import Bundle, as_bundle
from kvasir.ir.program import Program, state_spec
from kvasir.kv.cache import PrefixCache
from kvasir.sched.scheduler import Scheduler
from tests.planned import placed, step_plan, tables_after
from tests.sizes import changed, config_of
from tests.unit.test_prefix_cache import chain, fill

WINDOW = 40
BOUND = window_blocks(WINDOW, 16, n_seqs=3, n_tokens=64)
CONFIG = config_of(
    max_model_len=1024,
    max_num_seqs=3,
    max_num_batched_tokens=64,
    n_blocks=200,
    block_size=16,
    windows=(KVGroup(BOUND, WINDOW),),
)


def ask(i: int, n_prompt: int, n_outputs: int = 2, first: int = 0) -> EngineRequest:
    prompt = tuple(range(first, first + n_prompt))
    return EngineRequest(i, prompt, TokenParams(seed=i, max_tokens=n_outputs))


def step(made: Scheduler) -> StepPlan:
    plan = made.plan()
    assert plan is not None
    made.commit(plan, StepResult((RowOutput(7),) * plan.n_logits))
    made.check()
    return plan


def finish(made: Scheduler, *requests: EngineRequest) -> list[StepPlan]:
    for request in requests:
        made.add(request)
    plans = []
    while made.has_work:
        plans.append(step(made))
    return plans


def test_a_row_names_what_its_tokens_see() -> None:
    plans = finish(Scheduler(CONFIG), ask(1, 200))
    for n, plan in enumerate(plans, 1):
        row = plan.rows[0]
        ((full, window),) = tables_after(CONFIG, plans[:n])
        assert NO_BLOCK not in full
        assert len(full) == len(window) == -(-(row.start + len(row.tokens)) // 16)
        n_gone = max(0, row.start - WINDOW + 1) // 16
        assert [block == NO_BLOCK for block in window] == [i < n_gone for i in range(len(window))]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_memory_of_windowed_layers_does_not_grow_with_the_length(overlap: bool) -> None:
    """The pool holds the bound alone: three requests of 900 tokens never wait for a block."""
    spec = EngineSizes(1000, 1024, 3, 64, 200, 16, CONFIG.sizes.windows)
    scheduler = Scheduler(CONFIG)
    made = Engine(FakeExecutor(spec), scheduler, overlap=overlap)
    made.submit([ask(i, 800, 100, first=10 * i) for i in range(3)])
    most = 0
    while made.has_work:
        stats = made.step().stats
        made.check()
        used = stats.blocks_total - stats.blocks_free
        most = max(most, used)
    assert made.stats().n_preemptions == 0
    assert 3 * 900 // 16 < most <= 3 * 57 + BOUND
    made.close()


def test_a_hit_needs_what_the_next_token_sees() -> None:
    cache = PrefixCache((KVGroup(9), KVGroup(9, window=6)), 4)
    table = fill(cache, range(20))
    table.give_back(20)
    full, window = zip(*(table.at(i) for i in range(5)), strict=True)
    assert window == (NO_BLOCK, NO_BLOCK, NO_BLOCK, 3, 4)
    table.release()
    hit = cache.find(chain(range(20)), 20)
    assert (hit.tables, hit.n_part) == ((full, window), 0)
    assert cache.find(chain([*range(12), 99]), 13).tables == ((0, 1, 2), (NO_BLOCK, 1, 2))


def test_without_the_last_window_a_shorter_prefix_is_found() -> None:
    """Block 4 of the window goes first; what ends at block 3 has all that it needs."""
    cache = PrefixCache((KVGroup(9), KVGroup(9, window=6)), 4)
    table = fill(cache, range(20))
    table.release()
    assert cache.pools[1].cached() == (4, 3, 2, 1, 0)
    cache.pools[1].allocate(5)
    hit = cache.find(chain(range(20)), 20)
    assert (hit.node.depth, hit.tables) == (4, ((0, 1, 2, 3), (NO_BLOCK, NO_BLOCK, 2, 3)))
    assert (hit.source, hit.n_part) == ((), 0)
    cache.pools[1].allocate(2)
    assert cache.find(chain(range(20)), 20).node.depth == 2
    assert cache.pools[0].n_cached == len(cache.tree) == 5
    cache.check()


def test_a_dropped_prefix_frees_its_blocks_in_every_group() -> None:
    cache = PrefixCache((KVGroup(5), KVGroup(9, window=6)), 4)
    fill(cache, range(20)).release()
    cache.pools[0].allocate(2)
    assert (cache.pools[0].n_cached, cache.pools[1].n_cached, cache.pools[1].n_free) == (3, 3, 6)
    cache.check()


def test_prefixes_that_hold_nothing_are_bounded() -> None:
    """Without layers that keep everything, a prefix may stay for what follows it alone."""
    cache = PrefixCache((KVGroup(2, window=1),), 4)
    table = fill(cache, range(8))
    keys = chain(range(400))
    node = cache.find(keys, 8).node
    n_known = 2
    while node is not None:
        table.give_back(4 * n_known)
        table.grow(4 * n_known + 4)
        node = cache.insert(node, keys, table)
        n_known += 1
        cache.check()
    assert len(cache.tree) == 16
    table.release()
    cache.pools[0].allocate(2)
    assert len(cache.tree) == 0
    cache.check()


def test_the_next_turn_of_a_conversation_is_a_hit() -> None:
    made = Scheduler(replace(CONFIG, enable_prefix_caching=True))
    finish(made, ask(1, 300, 20))
    prompt = (*range(300), *[7] * 20, 1, 2, 3)
    plans = finish(made, EngineRequest(2, prompt, TokenParams(seed=2, max_tokens=2)))
    assert (plans[0].rows[0].start, len(plans[0].rows[0].tokens)) == (304, 19)


STATES = changed(CONFIG, windows=(KVGroup(40, STATE_WINDOW, 64),), enable_prefix_caching=True)


def test_a_hit_ends_where_a_snapshot_is() -> None:
    made = Scheduler(STATES)
    finish(made, ask(1, 100))
    plans = finish(made, ask(2, 100, first=0))
    assert [(row.start, len(row.tokens)) for plan in plans[:1] for row in plan.rows] == [(96, 4)]
    assert all(plan.copies == () for plan in plans)
    ((full, state),) = tables_after(STATES, plans[:1])
    assert NO_BLOCK not in full
    assert state[:5] == (NO_BLOCK,) * 5 and NO_BLOCK not in state[5:]


def test_a_sequence_holds_one_state_between_steps() -> None:
    made = Scheduler(changed(STATES, max_num_batched_tokens=16, enable_prefix_caching=False))
    made.add(ask(1, 200, n_outputs=40))
    most = 0
    while made.has_work:
        step(made)
        most = max(most, made._kv.cache.pools[1].n_used)
    assert most == 1


def test_states_refuse_what_they_cannot_do() -> None:
    with pytest.raises(ConfigError, match=r"2 drafted tokens; .* the inputs of 0: draft fewer"):
        Scheduler(replace(STATES, max_draft_tokens=2))


def bundle_of_states(*n_bytes: int) -> Bundle:
    kv = tuple(state_spec(layer, n // 4) for layer, n in enumerate(n_bytes))
    none: Mapping[str, Any] = MappingProxyType({})
    return as_bundle(Program("states", (), none, none, kv, none, (), ()))


def test_the_states_of_a_program_need_a_group_of_their_size() -> None:
    spec = EngineSizes(50, 1024, 3, 64, 200, 16, STATES.sizes.windows)
    check_states(bundle_of_states(40, 24), spec)
    for other in (bundle_of_states(40), bundle_of_states()):
        with pytest.raises(KvasirError, match=r"state groups of \[64\] bytes; the programs keep"):
            check_states(other, spec)
    with pytest.raises(KvasirError, match=r"state groups of \[\] bytes; the programs keep 64"):
        check_states(bundle_of_states(64), replace(spec, windows=()))


DRAFTING = [
    (0, {"parents": (-1, 0, 1)}, r"slots \[0\] draft over a state"),
    (0, {"n_drafts": 1}, r"slots \[0\] draft over a state"),
    (2, {"n_drafts": 1}, "slot 0 asks for drafts over a state"),
    (1, {"parents": (-1, 0, 1)}, "2 drafts over states that keep 1"),
    (1, {}, "2 drafts over states that keep 1"),
]


@pytest.mark.parametrize("n_kept, more, why", DRAFTING)
def test_no_plan_drafts_more_over_a_state_than_is_kept(
    n_kept: int, more: dict[str, Any], why: str
) -> None:
    windows = (KVGroup(40, STATE_WINDOW, 64, drafts=n_kept),)
    sizes = replace(STATES.sizes, max_num_seqs=3, windows=windows)
    blocks = ((0,), (0,))
    row = placed(0, 0, (1, 2, 3), blocks, n_logits=3, **more)
    plan = step_plan(0, (row,), (SlotOpen(0, TokenParams(seed=0, max_tokens=1), (1, 2, 3)),))
    with pytest.raises(KvasirError, match=why):
        check_plan(plan, sizes, {0: blocks}, {0}, Drawn())


def test_no_plan_copies_a_part_of_a_state() -> None:
    blocks, copies = ((0,), (0,)), (Copy((1, 1), (0, 0), 3),)
    opens = (SlotOpen(0, TokenParams(seed=0, max_tokens=1), (1, 2)),)
    plan = step_plan(0, (placed(0, 0, (1, 2), blocks),), opens, copies=copies)
    with pytest.raises(KvasirError, match="a copy of a part of a state"):
        check_plan(plan, STATES.sizes, {0: blocks}, {0}, Drawn())
