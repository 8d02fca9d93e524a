"""The exactness harness: one set of requests, many ways to compute it, one set of answers.

``make_executor`` builds an executor for given sizes, so that the same variants judge the fake, the
reference and the native executor:

    assert run(make_executor, requests, sizes, variant).answers == baseline(...).answers
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kvasir.config.kvgroups import window_blocks
from kvasir.config.resolved import PreemptionMode, SchedulerConfig, SharingConfig
from kvasir.core.groups import STATE_WINDOW, KVGroup
from kvasir.core.messages import EngineStats, TokenEvent
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.core.tiles import TileSpec
from kvasir.engine.engine import Engine
from kvasir.exec.base import Executor
from kvasir.exec.disk.directory import N_SEGMENTS, Limits
from kvasir.exec.disk.saving import block_sizes
from kvasir.exec.disk.store import DiskStore
from kvasir.sched.scheduler import Scheduler
from kvasir.serve.tokenlog import decode, encode, open_log, replay
from kvasir.timing.cost import CostModel
from tests.answers import Answer, answer_of
from tests.automaton import LateRing, Ring
from tests.damage import damage
from tests.drafting import Drafts
from tests.request_sets import forking, mixed
from tests.sizes import config_of

MakeExecutor = Callable[[EngineSizes], Executor]
FAIR = SharingConfig()

BLOCKS_PER_FILE = 6
WHOLE = 1 << 20
"""A chunk size that no prompt reaches; the harness cuts it to what the requests need."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What stays the same in every variant."""

    vocab_size: int
    max_model_len: int = 256
    block_size: int = 16
    numerics_id: str = "test"
    windows: tuple[int, ...] = ()  # with a KV group of their own
    has_full: bool = True
    """Some layers keep every position."""
    whole_prompts: bool = False
    state_bytes: int = 0  # of a sequence
    tile: TileSpec | None = None  # of images that the model sees
    span_tokens: int = 0  # of a tile, where they see each other
    costs: Callable[[], CostModel] = CostModel


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute the requests."""

    name: str
    n_seqs: int = 8
    chunk: int = 64
    """max_num_batched_tokens."""
    n_spare_blocks: int | None = None
    """Blocks beyond what the largest request needs; None: enough for every request at once."""
    stride: int = 0
    """Tokens between snapshots of states."""
    order: int | None = None
    """Seed of a shuffled order of arrival."""
    stagger: int = 0
    """Steps between arrivals; 0: all at once."""
    overlap: bool = False
    drafts: Drafts | None = None
    replay_after: int | None = None
    """Tokens emitted in total before the engine is dropped and a new one replays the requests."""
    cache: bool = False
    """With the prefix cache."""
    reset_every: int = 0
    """Steps between resets of the prefix cache; 0: never."""
    sharing: SharingConfig = FAIR
    is_mixed: bool = False
    """The requests are of three classes and of two tenants."""
    itl_target: float | None = None
    """Seconds that chunks are sized for while others decode; 0: they are not."""
    disk: bool = False
    """With a disk tier under the prefix cache."""
    preemption_mode: PreemptionMode = "auto"
    again: bool = False
    """Everything is asked once more of a new engine that finds the first one's blocks on disk."""
    damaged: bool = False
    """In between some bits on disk have flipped."""
    jump_ahead: bool = True
    """What a constraint forces has no steps of its own."""
    late_masks: bool = False
    """Every third mask comes when its step has gone on without it."""
    forks: bool = False
    """Each request forks from an earlier one that begins alike, and is held when it ends."""


@dataclass(frozen=True, slots=True)
class Outcome:
    answers: dict[int, Answer]
    stats: EngineStats
    """Of the last engine."""


def _chain(k: int, *wrong: int) -> Drafts:
    return Drafts(k, wrong_depths=frozenset(wrong))


VARIANTS: tuple[Variant, ...] = (
    Variant("alone", n_seqs=1, chunk=WHOLE),
    Variant("pairs", n_seqs=2, chunk=WHOLE, order=1),
    Variant("batch of 7, shuffled", n_seqs=7, chunk=WHOLE, order=2),
    Variant("batch of 64, shuffled", n_seqs=64, chunk=WHOLE, order=3),
    Variant("batch of 64, arriving one by one", n_seqs=64, order=4, stagger=3),
    Variant("chunks of 1", chunk=1),
    Variant("chunks of 7", chunk=7, order=5),
    Variant("chunks of 64", chunk=64, n_seqs=16),
    Variant("chunks by time", n_seqs=16, stagger=2, itl_target=3e-3),
    Variant("chunks by time, overlapped", n_seqs=16, stagger=1, overlap=True, itl_target=1e-4),
    Variant("chunks by the decodes", n_seqs=16, stagger=1, overlap=True, itl_target=0.0),
    Variant("preempted", n_seqs=8, n_spare_blocks=2),
    Variant("preempted, no spare block, chunks of 7", n_seqs=16, chunk=7, n_spare_blocks=0),
    Variant("no jumps", n_seqs=16, chunk=7, jump_ahead=False),
    Variant("no jumps, overlapped, preempted", overlap=True, n_spare_blocks=1, jump_ahead=False),
    Variant("overlapped", overlap=True),
    Variant("overlapped, chunks of 1", overlap=True, chunk=1, order=6),
    Variant("overlapped, chunks of 7, staggered", overlap=True, chunk=7, stagger=2),
    Variant("overlapped, preempted", overlap=True, n_spare_blocks=1, order=7),
    Variant("chain drafts", drafts=_chain(4)),
    Variant("chain drafts, wrong at depth 3", drafts=_chain(5, 3), order=8),
    Variant("tree drafts", drafts=Drafts(9, n_siblings=2)),
    Variant("tree drafts, wrong at depth 2", drafts=Drafts(8, 1, frozenset({2})), order=9),
    Variant("tree drafts, preempted", drafts=Drafts(6, n_siblings=1), n_spare_blocks=1),
    Variant("tree drafts, overlapped, chunks of 7", drafts=Drafts(6, 1), overlap=True, chunk=7),
    Variant(
        "tree drafts, overlapped, preempted", drafts=Drafts(6, 1), overlap=True, n_spare_blocks=1
    ),
    Variant(
        "tree drafts, overlapped, preempted, staggered",
        drafts=Drafts(6, n_siblings=1),
        overlap=True,
        n_spare_blocks=1,
        stagger=1,
    ),
    Variant("lookups", n_seqs=3, drafts=Drafts(7, by_lookup=True)),
    Variant(
        "lookups, overlapped, preempted, staggered",
        drafts=Drafts(5, by_lookup=True),
        overlap=True,
        n_spare_blocks=1,
        stagger=2,
    ),
    Variant("replayed after 1 token", replay_after=1),
    Variant("replayed after 40 tokens", replay_after=40, order=10),
    Variant("replayed, overlapped, preempted", replay_after=60, overlap=True, n_spare_blocks=1),
    Variant("replayed, tree drafts", replay_after=30, drafts=Drafts(6, n_siblings=1)),
)


CACHE_VARIANTS: tuple[Variant, ...] = tuple(
    replace(variant, cache=True)
    for variant in (
        Variant("one after the other", n_seqs=1, chunk=WHOLE),
        Variant("all at once", n_seqs=64, chunk=WHOLE),
        Variant("shuffled, chunks of 7", chunk=7, order=11),
        Variant("chunks of 1", chunk=1, n_seqs=3, order=12),
        Variant("arriving one by one", n_seqs=16, stagger=2, order=13),
        Variant("evicted and computed again", n_seqs=2, n_spare_blocks=1, stagger=2, order=14),
        Variant("preempted", n_seqs=16, n_spare_blocks=2, order=15),
        Variant("preempted, no spare block, chunks of 7", n_seqs=16, chunk=7, n_spare_blocks=0),
        Variant("overlapped", overlap=True, order=16),
        Variant("overlapped, chunks of 7, staggered", overlap=True, chunk=7, stagger=1),
        Variant("overlapped, preempted", overlap=True, n_seqs=16, n_spare_blocks=1, order=17),
        Variant("chunks by time", n_seqs=16, stagger=1, overlap=True, itl_target=1e-3, order=23),
        Variant("chain drafts", drafts=_chain(5, 3), order=18),
        Variant("lookups", overlap=True, n_seqs=2, drafts=Drafts(7, by_lookup=True), order=24),
        Variant("tree drafts, one after the other", n_seqs=1, drafts=Drafts(9, n_siblings=2)),
        Variant("tree drafts, overlapped", drafts=Drafts(6, 1), overlap=True, chunk=7, order=19),
        Variant(
            "tree drafts, overlapped, preempted",
            drafts=Drafts(8, 1, frozenset({3})),
            overlap=True,
            n_spare_blocks=1,
            order=20,
        ),
        Variant("replayed", replay_after=200, order=21),
        Variant(
            "replayed, overlapped, preempted", replay_after=150, overlap=True, n_spare_blocks=1
        ),
        Variant("reset again and again", n_seqs=4, reset_every=12, overlap=True, order=22),
    )
)


def baseline(
    make_executor: MakeExecutor, requests: Sequence[EngineRequest], sizes: Sizes
) -> Outcome:
    """Each request alone in an engine of its own: the answers that all variants must give."""
    answers: dict[int, Answer] = {}
    stats = EngineStats()
    alone = Variant("baseline", n_seqs=1, chunk=WHOLE, jump_ahead=False)
    for request in requests:
        outcome = run(make_executor, [request], sizes, alone)
        answers |= outcome.answers
        stats = outcome.stats
    return Outcome(answers, stats)


def run(
    make_executor: MakeExecutor,
    requests: Sequence[EngineRequest],
    sizes: Sizes,
    variant: Variant,
    known: Mapping[int, Answer] | None = None,
) -> Outcome:
    """``known``: right answers, for the variants that draft."""
    config = _config(requests, sizes, variant)
    arriving = [mixed(i, one) if variant.is_mixed else one for i, one in enumerate(requests)]
    if variant.order is not None:
        random.Random(variant.order).shuffle(arriving)
    arriving = forking(arriving) if variant.forks else arriving
    with _Client(make_executor, config, sizes, variant, known or {}) as client:
        if variant.replay_after is not None:
            client.run(arriving, stop_after=variant.replay_after)
            arriving = client.restart()
        client.run(arriving)
        if variant.again:
            client.begin_again()
            client.run(arriving)
        for request in requests:
            client.engine.release(request.id)
        return Outcome(client.answers(), client.engine.stats())


class _Client:
    """Feeds an engine, and keeps what the API process would keep."""

    def __init__(
        self,
        make_executor: MakeExecutor,
        config: SchedulerConfig,
        sizes: Sizes,
        variant: Variant,
        known: Mapping[int, Answer],
    ) -> None:
        self._make_executor = make_executor
        self._config = config
        self._sizes = sizes
        self._variant = variant
        self._known = known
        self._folder = TemporaryDirectory()
        self._events: dict[int, list[TokenEvent]] = {}
        self._logs: dict[int, bytes] = {}
        self.engine = self._make_engine()

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        self._folder.cleanup()

    def run(self, arriving: Sequence[EngineRequest], stop_after: int | None = None) -> None:
        """Until all are answered, or ``stop_after`` tokens have come."""
        queue = list(arriving)
        for request in queue:
            log = open_log(request, key_root="root", numerics_id=self._sizes.numerics_id)
            self._logs.setdefault(request.id, encode(log))
        n_steps = n_tokens = 0
        while queue or self.engine.has_work:
            if queue and (not self._variant.stagger or n_steps % self._variant.stagger == 0):
                n_new = 1 if self._variant.stagger else len(queue)
                self.engine.submit(queue[:n_new])
                del queue[:n_new]
            events = self.engine.step().events
            self.engine.check()
            n_steps += 1
            if self._variant.reset_every and n_steps % self._variant.reset_every == 0:
                self.engine.reset_prefix_cache()
            n_tokens += self._record(events)
            if stop_after is not None and n_tokens >= stop_after:
                return

    def restart(self) -> list[EngineRequest]:
        """Drop the engine; the unfinished requests, continued from their logs in a new one."""
        self.engine.close()
        self.engine = self._make_engine()
        logs = [decode(data) for data in self._logs.values()]
        numerics_id = self._sizes.numerics_id
        return [
            replay(log, key_root="root", numerics_id=numerics_id)
            for log in logs
            if log.finish is None
        ]

    def begin_again(self) -> None:
        """Drop the engine and all answers; what it has on disk stays."""
        self.engine.close()
        self._events.clear()
        self._logs.clear()
        if self._variant.damaged:
            for path in Path(self._folder.name).glob("*.kvseg"):
                damage(path)
        self.engine = self._make_engine()

    def answers(self) -> dict[int, Answer]:
        return {request_id: answer_of(events) for request_id, events in self._events.items()}

    def _record(self, events: Iterable[TokenEvent]) -> int:
        n_tokens = 0
        for event in events:
            log = decode(self._logs[event.id])
            log.record(event)
            self._logs[event.id] = encode(log)
            self._events.setdefault(event.id, []).append(event)
            n_tokens += len(event.tokens)
        return n_tokens

    def _make_engine(self) -> Engine:
        config, drafts = self._config, self._variant.drafts
        proposer = drafts.proposer(self._known, self._sizes.vocab_size) if drafts else None
        executor = self._make_executor(config.sizes)
        disk = self._open_disk(executor) if self._variant.disk else None
        scheduler = Scheduler(config, proposer, costs=self._sizes.costs(), disk=disk)
        make_masks = LateRing if self._variant.late_masks else Ring
        return Engine(
            executor,
            scheduler,
            overlap=self._variant.overlap,
            disk=disk,
            masks=make_masks(self._sizes.vocab_size),
            jump_ahead=self._variant.jump_ahead,
            tile=self._sizes.tile,
        )

    def _open_disk(self, executor: Executor) -> DiskStore:
        sizes = block_sizes(executor)
        n_bytes = N_SEGMENTS * (4096 + BLOCKS_PER_FILE * max(sizes))
        return DiskStore(Path(self._folder.name), Limits(n_bytes, sizes))


def _config(requests: Sequence[EngineRequest], sizes: Sizes, variant: Variant) -> SchedulerConfig:
    blocks = [
        -(-min(len(r.prompt) + r.params.max_tokens, sizes.max_model_len) // sizes.block_size)
        for r in requests
    ]
    drafts = variant.drafts or Drafts(0)
    enough = sum(blocks) + len(blocks) * (1 + drafts.k)
    most = variant.n_seqs * max(len(r.prompt) + r.params.max_tokens for r in requests)
    n_tokens = max(min(variant.chunk, most), sizes.span_tokens + 1)
    full = enough if variant.n_spare_blocks is None else max(blocks) + variant.n_spare_blocks
    return config_of(
        vocab_size=sizes.vocab_size,
        max_model_len=sizes.max_model_len,
        max_num_seqs=variant.n_seqs,
        max_num_batched_tokens=n_tokens,
        n_blocks=full if sizes.has_full else 0,
        block_size=sizes.block_size,
        **drafts.config,
        enable_prefix_caching=variant.cache,
        sharing=variant.sharing,
        itl_target=variant.itl_target,
        windows=_groups(full, n_tokens, sizes, variant),
        preemption_mode=variant.preemption_mode,
        whole_prompts=sizes.whole_prompts,
        span_tokens=sizes.span_tokens,
    )


def _groups(full: int, n_tokens: int, sizes: Sizes, variant: Variant) -> tuple[KVGroup, ...]:
    """Beside that of the layers that keep every position."""
    groups = [_window(window, full, n_tokens, sizes, variant) for window in sizes.windows]
    if sizes.state_bytes:
        state = _window(STATE_WINDOW, full, n_tokens, sizes, variant)
        n, n_drafts = sizes.state_bytes, variant.drafts.k if variant.drafts else 0
        groups.append(replace(state, state_bytes=n, stride=variant.stride, drafts=n_drafts))
    return tuple(groups)


def _window(window: int, full: int, n_tokens: int, sizes: Sizes, variant: Variant) -> KVGroup:
    """What no request waits for, or as tight as the blocks of the other layers."""
    tight = KVGroup(full, window, span=max(1, sizes.span_tokens))
    if variant.n_spare_blocks is None:
        n_blocks = window_blocks(window, sizes.block_size, variant.n_seqs, n_tokens)
        return replace(tight, n_blocks=n_blocks)
    needed = tight.needs(sizes.max_model_len, sizes.block_size)
    return replace(tight, n_blocks=needed + variant.n_spare_blocks)
