"""What the machine over the whole engine (tests.engine_machine) is made of: one world a seed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from kvasir.config.resolved import SchedulerConfig, SharingConfig
from kvasir.core.groups import STATE_WINDOW, KVGroup, blocks_for
from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.exec.disk.directory import Limits
from kvasir.exec.disk.store import DiskStore
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.masks import StepMasks
from kvasir.exec.rows import LogitRow
from kvasir.exec.steps import Run, StepThread
from kvasir.kv.tier import Fetch
from kvasir.sampling.masks import Bits
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Draft, Known, Proposer
from tests.automaton import Ring
from tests.exactness import Answer, answer_of
from tests.oracle_drafts import OracleProposer
from tests.request_sets import FREE
from tests.sizes import changed, config_of

VOCAB = 23
EOS = 5
"""Ends beams."""
STATE = -1
"""Stands for a group of states among the windows."""

Drawn = dict[tuple[int, TokenParams, int, int], RowOutput]


@dataclass(frozen=True, slots=True)
class World:
    """What a seed keeps over all its engines: the model, and who asks."""

    max_model_len: int
    block_size: int
    windows: tuple[int, ...]
    has_full: bool
    trunks: tuple[tuple[int, ...], ...]
    nonfinite: dict[int, int]
    """Seeds of requests that fail."""
    constraints: tuple[str, ...]
    """Of some requests; the last allows nothing."""

    @property
    def has_states(self) -> bool:
        return STATE in self.windows

    def groups(self, n_spare: int) -> tuple[int, tuple[KVGroup, ...]]:
        """Blocks for one request of the longest, and ``n_spare`` more."""
        n_blocks = blocks_for(self.max_model_len, self.block_size) + n_spare
        windows = []
        for window in self.windows:
            group = KVGroup(n_blocks, *((STATE_WINDOW, 8) if window == STATE else (window,)))
            needed = group.needs(self.max_model_len, self.block_size)
            windows.append(replace(group, n_blocks=needed + 1 + n_spare))
        return n_blocks * self.has_full, tuple(windows)


def make_world(rng: random.Random, *, has_constraints: bool, forces: bool) -> World:
    """``forces``: a constraint leaves one token for most outputs."""
    length = rng.choice((40, 64, 96))
    windows = rng.choice(((), (), (), (), (9,), (20, 40), (1, 30), (STATE,)))
    return World(
        max_model_len=length,
        block_size=rng.choice((4, 8, 16)),
        windows=windows,
        has_full=not windows or rng.random() < 0.7,
        trunks=tuple(tuple(rng.choices(range(VOCAB), k=length)) for _ in range(3)),
        nonfinite={rng.getrandbits(32): rng.randrange(6) for _ in range(2)},
        constraints=("6:3!" if forces else "3:1", "7:3", "23:9", "5:0") if has_constraints else (),
    )


def make_config(world: World, rng: random.Random, *, executor_drafts: bool) -> SchedulerConfig:
    """``executor_drafts``: drafts are those of a program, which none over states is."""
    n_blocks, windows = world.groups(rng.choice((0, 1, 2, 3, 5)))
    sharing = SharingConfig(
        preemption_threshold=rng.choice((0.0, 0.0, 0.05)),
        kv_policy=rng.choice(("paged", "paged", "paged", "paged", "contiguous")),
    )
    config = config_of(
        max_model_len=world.max_model_len,
        max_num_seqs=rng.choice((1, 2, 4, 6)),
        max_num_batched_tokens=rng.choice((1, 7, 16, 40, 64)),
        n_blocks=n_blocks,
        block_size=world.block_size,
        max_draft_tokens=0 if world.has_states else rng.choice((0, 0, 4, 6)),
        enable_prefix_caching=rng.random() < 0.9,
        itl_target=rng.choice((None, 0.0, 0.01)),
        preemption_mode=rng.choice(("auto", "swap", "swap", "recompute")),
        sharing=sharing,
        vocab_size=VOCAB,
        windows=windows,
        lazy_drafts=executor_drafts and not windows and rng.random() < 0.5,
    )
    if not world.has_states:
        return config
    n_drafts = 0 if executor_drafts else rng.choice((0, 4, 6))
    stride = rng.choice((0, 1, 2)) * world.block_size
    states = (replace(windows[0], stride=stride, drafts=n_drafts),)
    return changed(config, windows=states, max_draft_tokens=n_drafts)


class Later(StepThread):
    """Stands for the thread of the overlapped loop: runs a step as soon, or as late, as it may, and
    the same way every time."""

    def __init__(self, is_late: Callable[[], bool]) -> None:
        super().__init__()
        self._is_late = is_late
        self._queue: deque[tuple[Future[StepResult], Callable[[], StepResult]]] = deque()

    def submit(
        self, run: Run, plan: StepPlan, masks: StepMasks | None = None
    ) -> Future[StepResult]:
        """A step that waits for masks is run late: nobody would bring them meanwhile."""
        future = _Lazy(self)
        self._queue.append((future, partial(run, plan)))
        if not self._is_late() and masks is None:
            self.compute(future)
        return future

    def compute(self, wanted: Future[StepResult]) -> None:
        """All up to the wanted one."""
        while not wanted.done():
            future, call = self._queue.popleft()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    def close(self) -> None:
        if self._queue:
            self.compute(self._queue[-1][0])


class _Lazy(Future[StepResult]):
    def __init__(self, later: Later) -> None:
        super().__init__()
        self._later = later

    def result(self, timeout: float | None = None) -> StepResult:
        self._later.compute(self)
        return super().result(timeout)


class Threadless(FakeExecutor):
    """Computes on the caller's thread."""

    def __init__(self, sizes: EngineSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self._steps = Later(lambda: self.is_late)
        self.is_late = False
        """Steps run when they are waited for, not when they are submitted."""


class Remembering(Threadless):
    """Draws once what is drawn from the same logits with the same parameters, where nothing else
    is counted: drawing takes most of the time."""

    def __init__(self, sizes: EngineSizes, drawn: Drawn, **options: Any) -> None:
        super().__init__(sizes, **options)
        self._draws = drawn

    def _sample(self, row: LogitRow, seen: int, mask: Bits | None) -> RowOutput:
        params = self._states[row.slot].params
        if params.needs_outputs or mask is not None:
            return super()._sample(row, seen, mask)
        key = seen, params, row.out_index, row.target
        output = self._draws.get(key)
        if output is None:
            output = self._draws[key] = super()._sample(row, seen, mask)
        return output


class Oracle:
    """Each request alone, in a fresh engine without a cache; every one is computed once."""

    def __init__(self, world: World, drawn: Drawn) -> None:
        self._world = world
        self._drawn = drawn
        self._known: dict[tuple[tuple[int, ...], TokenParams], Answer] = {}

    def __call__(self, prompt: tuple[int, ...], params: TokenParams) -> Answer:
        answer = self._known.get((prompt, params))
        if answer is None:
            answer = self._known[prompt, params] = self._compute(prompt, params)
        return answer

    def _compute(self, prompt: tuple[int, ...], params: TokenParams) -> Answer:
        length = self._world.max_model_len
        n_blocks, windows = self._world.groups(0)
        windows = tuple(replace(group, n_blocks=length) for group in windows)
        size = self._world.block_size
        config = config_of(length, 1, length, n_blocks, size, vocab_size=VOCAB, windows=windows)
        executor = Threadless(config.sizes, nonfinite=self._world.nonfinite, is_checked=False)
        engine = Engine(executor, Scheduler(config), masks=Ring(VOCAB), jump_ahead=False)
        engine.add(EngineRequest(0, prompt, params))
        events: list[TokenEvent] = []
        while engine.has_work:
            events += engine.step().events
        return answer_of(events)


@dataclass
class Clock:
    now: float = 1.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Contents:
    """What was ever saved under each name."""

    n_drafted: int = 0
    """Bytes in the middle third of a block: entries of a draft program, which it may lack."""
    seen: dict[bytes, bytes] = field(default_factory=dict)

    def check(self, name: bytes, block: bytes) -> None:
        if n := self.n_drafted:
            block = block[:n] + block[2 * n :]
        assert self.seen.setdefault(name, block) == block, f"two contents of block {name.hex()}"


class SteppedStore(DiskStore):
    """Reads and writes when it is told to, on the caller's thread, as fast as it is told."""

    def __init__(self, path: Path, limits: Limits, bandwidth: float, contents: Contents) -> None:
        self._rate = bandwidth
        self._contents = contents
        super().__init__(path, limits)

    def _work(self) -> None:
        """The thread has nothing to do."""

    def seconds(self, n_bytes: int) -> float:
        return n_bytes / self._rate

    def put(self, name: bytes, block: bytes) -> bool:
        self._contents.check(name, block)
        return super().put(name, block)

    def stage(self, fetch: Fetch, names: Collection[bytes]) -> None:
        for name, block in zip(fetch.names, fetch.blocks, strict=True):
            self._contents.check(name, block)
        super().stage(fetch, names)

    def work(self, n: int) -> None:
        while n and self._work_once():
            n -= 1

    def wait(self, seconds: float) -> None:
        self.work(1)

    def close(self, seconds: float) -> None:
        self.work(1 << 20)
        super().close(seconds)


class Drafter(Proposer):
    """Drafts from the right answers: as they are, with mistakes, as trees, or anything."""

    def __init__(self, answers: dict[int, tuple[int, ...]], rng: random.Random) -> None:
        self._answers = answers
        self._rng = rng
        self._kind = rng.choice(("right", "wrong", "tree", "any"))

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [self._draft(known, k) for known in requests]

    def _draft(self, known: Known, k: int) -> Draft:
        rng, kind = self._rng, self._kind
        kind = rng.choice(("right", "wrong", "tree", "guess")) if kind == "any" else kind
        if kind == "guess" or known.id not in self._answers:
            tokens = rng.sample(range(VOCAB), rng.randint(0, k))
            parents = tuple(rng.randint(-1, i - 1) for i in range(len(tokens)))
            return Draft(tuple(tokens), parents if rng.random() < 0.5 else ())
        wrong = frozenset({rng.randint(1, 4)}) if kind != "right" else frozenset()
        oracle = OracleProposer(
            {known.id: self._answers[known.id]},
            VOCAB,
            n_siblings=kind == "tree",
            wrong_depths=wrong,
        )
        return oracle.propose([known], k)[0]


def make_prompt(
    world: World, told: Sequence[tuple[int, ...]], rng: random.Random
) -> tuple[int, ...]:
    """The beginning of one of a few texts, or of what was told before, and something of its own."""
    longest = world.max_model_len - 1
    trunk = rng.choice(told) if told and rng.random() < 0.7 else rng.choice(world.trunks)
    cut = rng.choice((rng.randint(0, len(trunk)), world.block_size * rng.randint(0, 6)))
    tail = rng.choices(range(VOCAB), k=rng.choice((0, 1, 1, 3, 9)))
    return (*trunk[:cut], *tail)[:longest] or (1,)


def make_params(world: World, rng: random.Random) -> TokenParams:
    seed = rng.choice((*world.nonfinite, *range(40))) if rng.random() < 0.5 else rng.getrandbits(64)
    params = TokenParams(seed=seed, max_tokens=rng.choice((1, 2, 5, 9, 17, 30)))
    kind = rng.choice(FREE) if rng.random() < 0.25 else FREE[0]
    params = kind(params, rng, VOCAB)
    if world.constraints and rng.random() < 0.3:
        params = with_fields(params, constraint=rng.choice(world.constraints))
    if params.constraint.endswith("!") and seed in world.nonfinite:
        return with_fields(params, seed=0)  # logits of what is forced are not looked at
    if params.n_prompt_logprobs >= 0 and seed in world.nonfinite:
        return with_fields(params, seed=0)  # which row fails would depend on the chunks
    return params
