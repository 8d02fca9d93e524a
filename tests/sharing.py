"""A load on a scheduler whose steps take virtual time: thousands of steps in a second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvasir.config.resolved import SchedulerConfig, SharingConfig
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepPlan, StepResult
from kvasir.core.request import EngineRequest, PriorityClass, Standing
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Proposer
from kvasir.timing.cost import chunk_load
from kvasir.timing.timeline import Timeline
from tests.sizes import config_of

STEP_SECONDS = 2e-3
TOKEN_SECONDS = 5e-4


def request(
    i: int,
    n_prompt: int = 32,
    n_outputs: int = 16,
    *,
    tenant: str = "",
    priority_class: PriorityClass = "standard",
    priority: int = 0,
    user: str = "",
    first: int | None = None,
) -> EngineRequest:
    """Prompts share nothing unless they have the same ``first`` token."""
    start = 1000 * (i + 1) if first is None else first
    return EngineRequest(
        i,
        tuple(range(start, start + n_prompt)),
        TokenParams(seed=i, max_tokens=n_outputs),
        standing=Standing(priority_class, tenant, priority, user=user),
    )


@dataclass
class Load:
    """Drives a scheduler; what every request computed, and when it started and ended."""

    config: SchedulerConfig
    pair_seconds: float = 0.0
    """Of a query and a key that it attends to."""
    proposer: Proposer | None = None
    now: float = 0.0
    arrived: dict[int, float] = field(default_factory=dict)
    first_token: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    spent: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of the tokens of each request."""
    gaps: list[float] = field(default_factory=list)
    """Seconds of a step, for each request that decoded in it."""

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.config, self.proposer, timeline=Timeline(lambda: self.now))
        self.slots: dict[int, int] = {}
        self.by_first = {}

    def add(self, requests: Iterable[EngineRequest]) -> None:
        for one in requests:
            self.arrived[one.id] = self.now
            self.by_first[one.prompt] = one.id
            self.scheduler.add(one)

    def step(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is None:
            self.scheduler.take_events()
            return None
        for opening in plan.opens:
            self.slots[opening.slot] = self.by_first[opening.prompt]
        for row in plan.rows:
            self.spent[self.slots[row.slot]] += TOKEN_SECONDS * len(row.tokens)
        n_pairs = sum(chunk_load(len(row.tokens), row.start).pairs for row in plan.rows)
        seconds = STEP_SECONDS + TOKEN_SECONDS * plan.n_tokens + self.pair_seconds * n_pairs
        self.gaps += [seconds] * sum(row.out_index > 0 for row in plan.rows)
        self.now += seconds
        outputs = (RowOutput(7),) * plan.n_logits
        for event in self.scheduler.commit(plan, StepResult(outputs, seconds)):
            self.first_token.setdefault(event.id, self.now)
            if event.finish is not None:
                self.ended[event.id] = self.now
        return plan

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()
            self.scheduler.check()

    def waits(self, ids: Iterable[int]) -> list[float]:
        """Seconds from arrival to the first token, ascending."""
        return sorted(self.first_token[i] - self.arrived[i] for i in ids)


def sizes(
    n_slots: int = 8,
    n_blocks: int = 256,
    budget: int = 64,
    *,
    cache: bool = False,
    sharing: SharingConfig | None = None,
) -> SchedulerConfig:
    return config_of(
        max_model_len=1024,
        max_num_seqs=n_slots,
        max_num_batched_tokens=budget,
        n_blocks=n_blocks,
        block_size=16,
        enable_prefix_caching=cache,
        sharing=sharing or SharingConfig(),
    )
