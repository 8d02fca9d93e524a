"""Where snapshots of states stand, what they save, and which of them go first."""

from __future__ import annotations

import pytest

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.groups import NO_BLOCK, STATE_WINDOW, KVGroup
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.kv.cache import PrefixCache
from kvasir.kv.lines import StateLine
from kvasir.kv.snapshots import SnapshotPool
from kvasir.kv.table import BlockTable
from kvasir.sched.scheduler import Scheduler
from tests.planned import tables_after
from tests.sizes import config_of
from tests.unit.test_prefix_cache import chain

STRIDE = 512
DRAWN = 7


def config(n_states: int = 64, stride: int = STRIDE, n_step: int = 512) -> SchedulerConfig:
    return config_of(
        max_model_len=8192,
        max_num_seqs=4,
        max_num_batched_tokens=n_step,
        n_blocks=4000,
        block_size=16,
        vocab_size=1 << 20,
        windows=(KVGroup(n_states, STATE_WINDOW, 64, stride),),
        enable_prefix_caching=True,
    )


def tokens(n: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + n))


def answer(made: Scheduler, prompt: tuple[int, ...], n_outputs: int = 1) -> list[StepPlan]:
    """The plans of a turn, whose outputs are all ``DRAWN``."""
    made.add(EngineRequest(made._n_plans + 1, prompt, TokenParams(seed=1, max_tokens=n_outputs)))
    plans = []
    while made.has_work:
        plan = made.plan()
        assert plan is not None
        made.commit(plan, StepResult((RowOutput(DRAWN),) * plan.n_logits))
        made.check()
        plans.append(plan)
    return plans


def states_of(made: Scheduler) -> SnapshotPool:
    pool = made._kv.cache.pools[1]
    assert isinstance(pool, SnapshotPool)
    return pool


def places(made: Scheduler) -> list[int]:
    """Tokens in front of each snapshot that is known."""
    return sorted(16 * node.depth for node in made._kv.cache.tree.by_block[1].values())


@pytest.mark.parametrize("n_others", [0, 12])
def test_the_next_turn_computes_at_most_32_old_tokens_again(n_others: int) -> None:
    """After 4,000 tokens, and the first turns of others, whose snapshots save no less."""
    made = Scheduler(config(n_states=40))
    prompt = tokens(3700)
    answer(made, prompt, 300)
    for i in range(n_others):
        answer(made, tokens(100, first=10_000 * (i + 1)), 30)
    said = (*prompt, *[DRAWN] * 300)
    first = answer(made, (*said, *tokens(20, first=5000)))[0].rows[0]
    assert 4000 - 32 <= first.start <= 4000
    # with other words behind the prompt as well
    first = answer(made, (*prompt, *tokens(20, first=6000)))[0].rows[0]
    assert 3700 - 32 <= first.start <= 3700


@pytest.mark.parametrize("n_step", [16, 48, 512])
def test_snapshots_stand_at_the_same_places_whatever_the_chunks(n_step: int) -> None:
    made = Scheduler(config(n_step=n_step))
    answer(made, tokens(1300), 40)
    # every 512 tokens, behind the prompt and behind the turn: 1,339 tokens are computed
    assert places(made) == [512, 1024, 1296, 1328]


def test_a_step_holds_one_state_and_the_snapshots_in_it() -> None:
    made = Scheduler(config(n_step=1024))
    made.add(EngineRequest(1, tokens(1100), TokenParams(seed=1, max_tokens=1)))
    plan = made.plan()
    assert plan is not None
    ((full, state),) = tables_after(made.config, [plan])
    assert len(set(full)) == len(full) == len(state) == 64
    assert [state.index(block) for block in dict.fromkeys(state)] == [0, 32]
    assert states_of(made).n_used == 2


def test_the_bytes_of_states_are_constant_in_decode() -> None:
    """A state to go on in, and the snapshots of the prompt and of the newest border."""
    made = Scheduler(config(stride=0))
    made.add(EngineRequest(1, tokens(100), TokenParams(seed=1, max_tokens=4000)))
    used = []
    while made.has_work:
        plan = made.plan()
        assert plan is not None
        made.commit(plan, StepResult((RowOutput(DRAWN),) * plan.n_logits))
        pool = states_of(made)
        used.append((pool.n_used, pool.n_used + pool.n_cached))
    assert len(used) == 4000
    assert {n for n, _ in used[:-1]} == {1}
    # a border's snapshot is the state itself until it goes on
    assert {n for _, n in used[40:400]} == {n for _, n in used[-400:-1]} == {2, 3}
    assert places(made) == [96, 4096]


def test_a_snapshot_is_left_where_prefixes_branch() -> None:
    """Requests with a system prompt in common: the second computes it again, the third does not."""
    made = Scheduler(config(stride=0))
    starts = [
        answer(made, (*tokens(1000), *tokens(100, first=5000 * i)))[0].rows[0].start
        for i in (1, 2, 3)
    ]
    assert starts == [0, 0, 992]


def test_who_goes_on_where_another_computes_waits_for_it() -> None:
    """The prefix that both begin with is computed once, though no snapshot is in it yet."""
    made = Scheduler(config(stride=STRIDE))
    prompt = tokens(1500)
    for i in (1, 2):
        own = (*prompt, *tokens(10, first=5000 * i))
        made.add(EngineRequest(i, own, TokenParams(seed=1, max_tokens=1)))
    n_tokens = 0
    while made.has_work:
        plan = made.plan()
        assert plan is not None
        n_tokens += plan.n_tokens
        made.commit(plan, StepResult((RowOutput(DRAWN),) * plan.n_logits))
    assert n_tokens == 1510 + 1510 - 1024


def test_what_no_block_is_left_for_is_left_out() -> None:
    """Two states are enough for a request, however long; it leaves what snapshot it can."""
    made = Scheduler(config(n_states=2))
    plans = answer(made, tokens(3000), 20)
    assert [row.start for plan in plans for row in plan.rows][:3] == [0, 512, 1024]
    assert places(made)[-1] == 3008


def test_the_snapshot_that_saves_least_goes_first() -> None:
    """Seconds saved count, and time: what was given up before has to save more to stay."""
    cache = PrefixCache((KVGroup(90), KVGroup(3, STATE_WINDOW, 64)), 4)

    def leave(first: int, n: int) -> None:
        keys, table = chain(range(first, first + n)), BlockTable(cache.pools, 4)
        table.leave_snapshots(1 << 20, {n // 4})
        table.grow(n)
        cache.extend(cache.find(keys, 0).node, keys, table, n // 4)
        table.release()
        cache.check()

    def found(first: int, n: int) -> bool:
        return cache.find(chain(range(first, first + n)), n).node.depth > 0

    for first, n in ((0, 80), (100, 8), (200, 40)):
        leave(first, n)
    assert [found(0, 80), found(100, 8), found(200, 40)] == [True] * 3
    for first in (300, 400):
        leave(first, 16)
    assert [found(0, 80), found(100, 8), found(200, 40)] == [True, False, True]
    for first in range(1000, 2000, 100):
        leave(first, 16)
    assert not found(200, 40) and not found(0, 80)


def test_a_snapshot_behind_one_that_went_is_worth_more() -> None:
    cache = PrefixCache((KVGroup(90), KVGroup(2, STATE_WINDOW, 64)), 4)
    keys, table = chain(range(80)), BlockTable(cache.pools, 4)
    table.leave_snapshots(1 << 20, {9, 20})
    table.grow(80)
    cache.extend(cache.find(keys, 0).node, keys, table, 20)
    table.release()
    pool = cache.pools[1]
    last, front = (cache.find(keys, n).tables[1][-1] for n in (80, 79))
    assert pool.cached() == (front, last)  # 36 tokens, and 44 behind them
    assert pool.allocate(1) == (front,)
    assert cache._saves(1, last) == 80
    cache.check()


def test_who_is_held_holds_its_newest_snapshot_and_no_state_to_go_on_in() -> None:
    """Others take every block that is free or evictable; what was held is a hit nevertheless."""
    made = Scheduler(config(n_states=4, stride=0))
    prompt = tokens(1000)
    params = TokenParams(seed=1, max_tokens=40)
    made.add(EngineRequest(1, prompt, params, hold_seconds=60.0))
    while made.has_work:
        plan = made.plan()
        assert plan is not None
        made.commit(plan, StepResult((RowOutput(DRAWN),) * plan.n_logits))
    assert states_of(made).n_used == 1
    for i in range(1, 6):
        answer(made, tokens(600, first=10_000 * i), 40)
    said = (*prompt, *[DRAWN] * 40, *tokens(9, first=5000))
    assert answer(made, said)[0].rows[0].start == 1024


def pool_of(n_blocks: int) -> SnapshotPool:
    """Nothing is cached in it; no stride."""
    return SnapshotPool(n_blocks, STATE_WINDOW, (), lambda block: None, float, 0)


def test_a_state_that_went_on_past_the_end_of_a_kept_sequence_is_no_snapshot_of_it() -> None:
    line = StateLine(pool_of(4), 16)
    line.turn = 9  # no borders of its own
    line.grow(3)
    assert line.blocks == line.blocks[:1] * 3, "it goes on in place"
    line.trim(2)
    assert line.blocks == [NO_BLOCK, NO_BLOCK]
    assert line.full(0) == line.full(1) == NO_BLOCK
    assert line.pool.n_used == 0


def test_a_state_that_ends_with_a_kept_sequence_stays() -> None:
    line = StateLine(pool_of(4), 16)
    line.grow(2)
    line.grow(3)
    first, second = line.blocks[1:]
    assert first != second, "the newest border of a turn has one"
    line.trim(2)
    assert line.full(1) == first and line.held() == [line.blocks[0], first]


def test_what_a_snapshot_saves_counts_when_one_has_to_go() -> None:
    """The one in front of the first has gone since it was given up, so it saves more."""
    saved, gone = {0: 1.0, 1: 5.0}, list[int]()
    pool = SnapshotPool(2, STATE_WINDOW, saved, gone.append, saved.__getitem__, 0)
    blocks = pool.allocate(2)
    pool.free(blocks)
    saved[0] = 9.0
    pool.allocate(1)
    assert gone == [1]
    pool.allocate(1)
    assert gone == [1, 0]


def test_the_order_of_snapshots_is_kept_in_bounds() -> None:
    pool = SnapshotPool(3, STATE_WINDOW, range(3), lambda block: None, float, 0)
    block = pool.allocate(1)
    pool.free(block)
    for _ in range(100):  # hits, after each of which it is ranked again
        pool.share(block)
        pool.free(block)
    assert len(pool._heap) <= 4 * 3
