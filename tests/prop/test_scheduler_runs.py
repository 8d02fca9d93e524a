"""Random arrivals, cancellations and tiny pools: invariants after every step, and all finish."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.groups import STATE_WINDOW, KVGroup
from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.plan import StepPlan
from kvasir.core.request import PRIORITY_CLASSES, EngineRequest, Standing
from kvasir.core.sizes import EngineSizes
from kvasir.core.tiles import TileSpec
from kvasir.engine.engine import Engine
from kvasir.exec.base import BlockStore, Handle
from kvasir.exec.disk.directory import N_SEGMENTS, Limits
from kvasir.exec.disk.saving import block_sizes
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.media import MediaSlots
from kvasir.exec.rows import logit_rows
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Draft, Known, Proposer
from kvasir.timing.timeline import Timeline
from tests.engine_world import Contents, SteppedStore
from tests.forms import IS_LONG, n_of
from tests.oracle_drafts import OracleProposer
from tests.sizes import changed, config_of

VOCAB = 31
N_CROWDS = 20 if IS_LONG else 4
STEP_SECONDS = 1.0
"""Who runs nothing for so long may take a slot."""
STATE = -1
"""Stands for a group of states among the windows."""


@dataclass(frozen=True)
class Case:
    config: SchedulerConfig
    requests: list[EngineRequest]
    arrivals: list[int]
    """Step at which each request arrives."""
    cancels: dict[int, int]
    """Request id to the step that cancels it."""
    overlap: bool
    has_disk: bool = False
    tile: TileSpec | None = None
    """Of images, whose tokens see each other."""


def with_windows(config: SchedulerConfig, window: int, has_full: bool) -> SchedulerConfig:
    """A group of ``window``, as tight as that of the layers that keep every position."""
    if not window:
        return config
    state_bytes = 8 if window == STATE else 0
    window = STATE_WINDOW if window == STATE else window
    needed = KVGroup(config.sizes.n_blocks, window).needs(
        config.sizes.max_model_len, config.sizes.block_size
    )
    n_spare = config.sizes.n_blocks - -(-config.sizes.max_model_len // config.sizes.block_size)
    drafts = config.max_draft_tokens if state_bytes else 0
    windows = (KVGroup(needed + n_spare, window, state_bytes, drafts=drafts),)
    return changed(config, n_blocks=config.sizes.n_blocks * has_full, windows=windows)


standings = st.builds(
    Standing, st.sampled_from(PRIORITY_CLASSES), st.sampled_from("abc"), st.integers(-1, 1)
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n_blocks = draw(st.integers(3, 12))
    config = config_of(
        vocab_size=VOCAB,
        max_model_len=draw(st.integers(20, n_blocks * 16)),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.sampled_from((1, 2, 5, 16, 64))),
        n_blocks=n_blocks,
        block_size=16,
        max_draft_tokens=draw(st.sampled_from((0, 0, 3))),
        enable_prefix_caching=draw(st.booleans()),
    )
    config = with_windows(
        config, draw(st.sampled_from((0, 0, 1, 17, 40, STATE, STATE))), draw(st.booleans())
    )
    requests = [
        EngineRequest(
            i,
            tuple(
                j * (i % 2 + 3) * (1 + (j > i * 5)) % VOCAB
                for j in range(draw(st.integers(1, config.sizes.max_model_len + 2)))
            ),
            TokenParams(
                seed=i,
                max_tokens=draw(st.integers(0, 40)),
                temperature=0.0,
                repetition_penalty=1.1,
                stop_ids=(3, 4),
                min_tokens=draw(st.integers(0, 50)),
                n_prompt_logprobs=draw(st.sampled_from((-1, 0))),
            ),
            standing=draw(standings),
        )
        for i in range(draw(st.integers(1, 10)))
    ]
    n = len(requests)
    return Case(
        config=config,
        requests=requests,
        arrivals=sorted(draw(st.lists(st.integers(0, 30), min_size=n, max_size=n))),
        cancels=draw(st.dictionaries(st.integers(0, n), st.integers(0, 60), max_size=4)),
        overlap=draw(st.booleans()),
        has_disk=config.enable_prefix_caching and draw(st.booleans()),
    )


class Guesser(Proposer):
    """Drafts that are mostly wrong, chains and trees."""

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [self._draft(known, k) for known in requests]

    def _draft(self, known: Known, k: int) -> Draft:
        rng = random.Random(known.id * 1000 + len(known.tokens))
        n = rng.randint(0, k)
        tokens = rng.sample(range(VOCAB), n)
        parents = tuple(rng.randint(-1, i - 1) for i in range(n)) if rng.random() < 0.5 else ()
        return Draft(tuple(tokens), parents)


@dataclass
class Watched:
    """An executor that looks at every plan before running it."""

    inner: FakeExecutor
    plans: list[StepPlan] = field(default_factory=list)
    n_counted: dict[int, int] = field(default_factory=dict)
    """Per slot the outputs that a sampler's state would count."""
    may_start_late: bool = False
    """A hit gives the first tokens."""
    media: MediaSlots = field(default_factory=MediaSlots)

    @property
    def sizes(self) -> EngineSizes:
        return self.inner.sizes

    def attach(self, store: BlockStore) -> None:
        self.inner.attach(store)

    def start(self, plan: StepPlan) -> Handle:
        assert 0 < plan.n_tokens <= self.sizes.max_num_batched_tokens
        assert 0 < len(plan.rows) <= self.sizes.max_num_seqs
        self.plans.append(plan)
        self._check_slots(plan)
        for run in self.media.of(plan):
            assert run.first + run.n == run.media.n_tokens
        return self.inner.start(plan)

    def _check_slots(self, plan: StepPlan) -> None:
        opened = {opening.slot: len(opening.output) for opening in plan.opens}
        self.n_counted |= opened
        for slot, _ in plan.commits:
            self.n_counted[slot] += 1
        for move in plan.moves:
            assert move.slot in self.n_counted
            assert move.slot not in opened
        for row in plan.rows:
            assert not row.start or row.slot not in opened or self.may_start_late
            for drawn in logit_rows(row):
                if drawn.target < 0:
                    assert drawn.out_index == self.n_counted[row.slot] + len(drawn.path)

    def read_block(self, group: int, block: int) -> bytes:
        return self.inner.read_block(group, block)

    def close(self) -> None:
        self.inner.close()


def play(
    case: Case, proposer: Proposer | None = None
) -> tuple[dict[int, list[TokenEvent]], Watched, Engine]:
    """Run a case to its end, checking every step."""
    with TemporaryDirectory() as folder:
        return _play(case, proposer, Path(folder))


def _play(
    case: Case, proposer: Proposer | None, folder: Path
) -> tuple[dict[int, list[TokenEvent]], Watched, Engine]:
    c = case.config
    may_start_late = c.enable_prefix_caching or any(one.parent >= 0 for one in case.requests)
    executor = Watched(FakeExecutor(c.sizes), may_start_late=may_start_late)
    disk = None
    if case.has_disk:
        sizes = block_sizes(executor)
        limits = Limits(N_SEGMENTS * (4096 + 4 * max(sizes)), sizes)
        disk = SteppedStore(folder, limits, 1e9, Contents())
    step = 0
    timeline = Timeline(lambda: step * STEP_SECONDS)
    scheduler = Scheduler(c, proposer or Guesser(), timeline=timeline, disk=disk)
    engine = Engine(executor, scheduler, overlap=case.overlap, disk=disk, tile=case.tile)
    events: dict[int, list[TokenEvent]] = {request.id: [] for request in case.requests}
    n_idle = 0
    while step <= 61 or engine.has_work:
        arrived = zip(case.requests, case.arrivals, strict=True)
        engine.submit(request for request, arrival in arrived if arrival == step)
        for request_id, when in case.cancels.items():
            if when == step:
                engine.cancel(request_id)
        had_work = engine.has_work
        if disk is not None and step % 2:
            disk.work(2)
        news = engine.step().events
        for event in news:
            events[event.id].append(event)
        engine.check()
        step += 1
        n_idle = 0 if news or not had_work else n_idle + 1
        assert n_idle <= 700, "no progress"
    engine.close()
    return events, executor, engine


@settings(max_examples=n_of(30, 80), deadline=None)
@given(cases())
def test_everything_ends_and_nothing_leaks(case: Case) -> None:
    events, executor, engine = play(case)
    stats = engine.stats()
    assert (stats.n_running, stats.n_waiting) == (0, 0)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    assert stats.blocks_total == sum(group.n_blocks for group in case.config.sizes.groups)
    assert stats.step == len(executor.plans)
    for request in case.requests:
        news = events[request.id]
        assert [event.finish for event in news[:-1]] == [None] * (len(news) - 1)
        assert news[-1].finish in ("stop", "length", "cancelled", "error")
        n_tokens = sum(len(event.tokens) for event in news)
        limit = case.config.sizes.max_model_len - len(request.prompt)
        if news[-1].finish == "length":
            assert n_tokens == min(request.params.max_tokens, limit)
        if news[-1].finish == "error":
            assert news[-1].error_code == "context_length_exceeded"
            assert limit < 1


# The block of the request has slid past its window of one token when it becomes known.
SLID = Case(
    config_of(
        vocab_size=VOCAB,
        max_model_len=20,
        max_num_seqs=1,
        max_num_batched_tokens=1,
        n_blocks=0,
        block_size=16,
        enable_prefix_caching=True,
        windows=(KVGroup(2, 1),),
    ),
    [EngineRequest(0, tuple(range(5, 22)), TokenParams(seed=0, max_tokens=1, temperature=0.0))],
    arrivals=[0],
    cancels={},
    overlap=False,
    has_disk=True,
)


@settings(max_examples=n_of(12, 30), deadline=None)
@example(SLID)
@given(cases())
def test_answers_are_those_of_each_request_alone(case: Case) -> None:
    events, _, _ = play(case)
    roomy = changed(
        case.config,
        max_num_seqs=1,
        max_num_batched_tokens=4096,
        max_draft_tokens=0,
        enable_prefix_caching=False,
    )
    for request in case.requests:
        alone, _, _ = play(Case(roomy, [request], [0], {}, overlap=False))
        got, want = tokens_of(events[request.id]), tokens_of(alone[request.id])
        was_cancelled = events[request.id][-1].finish == "cancelled"
        assert got == (want[: len(got)] if was_cancelled else want)


def crowded(seed: int, window: int | None = None) -> Case:
    """Many requests on few blocks, arriving while others run."""
    rng = random.Random(seed)
    n_blocks = rng.randint(4, 6)
    config = config_of(
        vocab_size=VOCAB,
        max_model_len=n_blocks * 16,
        max_num_seqs=rng.randint(2, 6),
        max_num_batched_tokens=rng.choice((8, 24, 64)),
        n_blocks=n_blocks,
        block_size=16,
        max_draft_tokens=rng.choice((0, 5, 7)),
        enable_prefix_caching=seed % 4 > 1,
    )
    window = (0, 25, 9)[seed % 3] if window is None else window
    config = with_windows(config, window, has_full=seed % 5 > 0)
    requests = [
        EngineRequest(
            i,
            tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))),
            TokenParams(
                seed=i,
                max_tokens=rng.randint(25, 52),
                temperature=rng.choice((0, 1)),
                repetition_penalty=1.1,
            ),
            standing=Standing(tenant="first" if i < 9 else "late"),
        )
        for i in range(12)
    ]
    arrivals = sorted(rng.randint(0, 25) for _ in requests)
    return Case(config, requests, arrivals, {}, overlap=seed % 2 == 1, has_disk=seed % 4 == 3)


def test_crowded_runs_give_the_answers_of_each_request_alone() -> None:
    n_preemptions = 0
    for seed in range(N_CROWDS):
        case = crowded(seed)
        roomy = changed(case.config, max_num_seqs=1)
        alone, _, _ = play(Case(roomy, case.requests, [0] * 12, {}, overlap=False))
        answers = {i: tokens_of(events) for i, events in alone.items()}
        proposer = OracleProposer(answers, VOCAB, n_siblings=1, wrong_depths=frozenset({3}))
        events, _, engine = play(case, proposer)
        assert {i: tokens_of(news) for i, news in events.items()} == answers, seed
        n_preemptions += engine.stats().n_preemptions
    assert n_preemptions > 2 * N_CROWDS


def test_who_gives_a_slot_to_a_late_tenant_has_the_answers_of_each_request_alone() -> None:
    n_preemptions = 0
    for seed in range(N_CROWDS):
        case = crowded(seed, window=0)
        config = changed(case.config, max_num_seqs=2 + seed % 2, n_blocks=64, max_model_len=64)
        alone, _, _ = play(
            Case(changed(config, max_num_seqs=1), case.requests, [0] * 12, {}, overlap=False)
        )
        events, _, engine = play(replace(case, config=config))
        for i, news in events.items():
            assert tokens_of(news) == tokens_of(alone[i]), (seed, i)
        n_preemptions += engine.stats().n_preemptions
    assert n_preemptions >= N_CROWDS, "of slots alone: there are blocks for all"


def test_crowded_states_are_found_again_and_forked_at_the_ends_of_blocks() -> None:
    n_preemptions = n_hits = 0
    n_crowds = 2 * N_CROWDS  # of some of them none is preempted
    for seed in range(n_crowds):
        case = crowded(seed, STATE)
        config = changed(
            case.config,
            max_model_len=64,
            n_blocks=8,
            windows=(KVGroup(8, STATE_WINDOW, 8, drafts=case.config.max_draft_tokens),),
            enable_prefix_caching=seed % 3 > 0,
        )
        shared = (*range(20), *range(9))
        requests = [
            structs.replace(
                request,
                prompt=(*shared, *request.prompt)[: config.sizes.max_model_len - 8],
                parent=request.id - 1,
            )
            for request in case.requests
        ]
        roomy = changed(config, max_num_seqs=1, enable_prefix_caching=False)
        events, _, engine = play(replace(case, config=config, requests=requests))
        for request in requests:
            alone, _, _ = play(Case(roomy, [request], [0], {}, overlap=False))
            assert tokens_of(events[request.id]) == tokens_of(alone[request.id]), seed
        n_preemptions += engine.stats().n_preemptions
        n_hits += engine.stats().prefix_hits
    assert n_preemptions > n_crowds // 4
    assert n_hits > 15 * n_crowds and n_hits % 16 == 0


def tokens_of(events: list[TokenEvent]) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.tokens)
