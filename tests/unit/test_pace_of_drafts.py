"""Prompts beside a stream that drafts: of two plans of the overlapped loop one has no row of it,
and it waits for both."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvasir.core.params import TokenParams
from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.request import EngineRequest, Standing
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.cost import CostModel, Costs
from tests.drafting import Drafts
from tests.exactness import Sizes, baseline
from tests.sizes import config_of

VOCAB, BUDGET = 97, 256
STREAM = EngineRequest(0, (5, 6, 7), TokenParams(seed=1, max_tokens=60))
PROMPT = EngineRequest(1, tuple(i % 90 for i in range(900)), TokenParams(seed=1, max_tokens=2))
COSTS = Costs(step=5e-3, row=1e-5, token=1e-3, pair=1e-9, entry=1e-9)


@pytest.mark.parametrize(("target", "other"), [(0.02, ""), (None, "another")])
def test_what_a_stream_waits_for_is_short(target: float | None, other: str) -> None:
    """``target``: a step's; None: the share of one tenant's prompts beside another's stream."""
    drafts = Drafts(4)
    config = config_of(1024, 2, BUDGET, 200, 16, vocab_size=VOCAB, **drafts.config)
    executor = FakeExecutor(config.sizes)
    plans, plain = list[StepPlan](), executor.run

    def run(plan: StepPlan) -> StepResult:
        plans.append(plan)
        return plain(plan)

    executor.run = run  # type: ignore[method-assign]
    known = baseline(FakeExecutor, [STREAM], Sizes(VOCAB, max_model_len=1024)).answers
    config, proposer = replace(config, itl_target=target), drafts.proposer(known, VOCAB)
    scheduler = Scheduler(config, proposer, costs=CostModel(COSTS))
    engine = Engine(executor, scheduler, overlap=True)
    engine.add(STREAM)
    engine.step()
    engine.add(replace(PROMPT, standing=Standing(tenant=other)))
    while engine.has_work:
        engine.step()
    last = max(i for i, plan in enumerate(plans) if plan.rows[0].slot == 0)
    chunks = [[len(row.tokens) for row in plan.rows if row.slot == 1] for plan in plans[2:last]]
    alone = [plan.rows[0].slot == 1 for plan in plans[2:last]]
    assert sum(alone) > 2, "plans without a row of the stream"
    assert max(map(sum, chunks)) <= 16 and min(map(sum, chunks)) > 0
