"""Why steps had no drafts, as timelines tell it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvasir.core.params import TokenParams
from kvasir.core.plan import StepPlan
from kvasir.core.request import EngineRequest
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.gaps import HeadGaps
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Draft, Known, Proposer
from kvasir.speculate.executor import ExecutorProposer
from kvasir.timing.records import Span
from kvasir.timing.undrafted import (
    BEHIND,
    BUDGET,
    FORCED,
    KIND,
    MASKS,
    MISSED,
    NO_MATCH,
    REFUSED,
    SENTENCES,
    SHORT,
    UNPAID,
    undrafted_of,
)
from tests.sizes import changed, config_of

CONFIG = config_of(256, 4, 64, 64, 16, vocab_size=97, max_draft_tokens=4)
N_OUTPUTS = 30


class Says(Proposer):
    """Always the same, which is always wrong."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [self._draft.head(k) for _ in requests]


NOTHING, WRONG, ASKS = Says(Draft()), Says(Draft((95, 95), evidence=3)), ExecutorProposer()


class Run:
    """One request until its end, or for ``n_plans``; every step after the one before."""

    def __init__(self, proposer: Proposer | None, n_prompt: int = 5, **sizes: int | bool) -> None:
        config = changed(CONFIG, **sizes)
        self.made, self.executor = Scheduler(config, proposer), FakeExecutor(config.sizes, misses=0)
        self.n_prompt = n_prompt
        self.n_decodes = 0

    def step(self) -> StepPlan | None:
        plan = self.made.plan()
        if plan is not None:
            plain = [row for row in plan.rows if len(row.tokens) == 1 and not row.n_drafts]
            self.n_decodes += sum([row.out_index > 0 for row in plain])
            self.made.commit(plan, self.executor.run(plan))
        return plan

    def counts(self, forced: tuple[int, ...] = (), **params: int | str) -> dict[str, int]:
        """By their reasons the steps."""
        asked = TokenParams(**{"seed": 1, "max_tokens": N_OUTPUTS, **params})  # type: ignore[arg-type]  # of several types
        self.made.add(EngineRequest(0, tuple([i % 97 for i in range(self.n_prompt)]), asked))
        while self.step() is not None:
            request = self.made.find(0)
            if forced and request is not None and request.n_outputs == 4:
                self.made.jump(request, forced)
        self.executor.close()
        return {x.reason: x.n_steps for x in undrafted_of(self.spans())}

    def spans(self) -> tuple[Span, ...]:
        story = self.made.timeline.story(0)
        assert story is not None and story.spans[-1].kind == "finished"
        return story.spans


def test_every_step_without_drafts_has_a_reason() -> None:
    run = Run(NOTHING)
    assert run.counts() == {NO_MATCH: N_OUTPUTS - 2, SHORT: 1}
    assert run.n_decodes == N_OUTPUTS - 1
    decode, *told = [span for span in run.spans() if span.kind in ("decode", KIND)]
    assert decode.steps == N_OUTPUTS - 1, "what is told at the end cuts no span"
    assert [span.kind for span in told] == [KIND] * 2 and told[0].tokens == 0
    assert Run(NOTHING).counts(max_drafts=0) == {REFUSED: N_OUTPUTS - 1}
    assert Run(NOTHING).counts(max_tokens=1) == {SHORT: 1}


def test_where_nobody_drafts_nothing_is_told() -> None:
    assert Run(None, max_draft_tokens=0).counts() == {}


def test_drafts_that_are_wrong_do_not_pay() -> None:
    run = Run(WRONG)
    counts = run.counts()
    assert counts[UNPAID] >= N_OUTPUTS // 3
    assert sum(counts.values()) == run.n_decodes < N_OUTPUTS - 1


def test_there_may_be_no_room() -> None:
    counts = Run(WRONG, max_num_batched_tokens=1, adapts_drafts=False).counts()
    assert counts == {BUDGET: N_OUTPUTS - 2, SHORT: 1}


def test_masks_keep_a_draft_model_off() -> None:
    counts = Run(ASKS, adapts_drafts=False).counts(constraint="x")
    assert counts == {MASKS: N_OUTPUTS - 2, SHORT: 1}


def test_a_head_that_missed_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadGaps, "has_all", lambda self, request: False)
    counts = Run(ASKS, adapts_drafts=False, head_may_rest=True, draft_is_head=True).counts()
    assert counts[MISSED] >= N_OUTPUTS - 4


def test_a_draft_model_that_reads_its_text_first() -> None:
    run = Run(ASKS, n_prompt=200, adapts_drafts=False, lazy_drafts=True)
    counts = run.counts()
    assert counts[BEHIND] >= 1 and NO_MATCH not in counts
    assert sum(counts.values()) == run.n_decodes < N_OUTPUTS - 1


def test_what_is_forced_needs_no_drafts() -> None:
    counts = Run(NOTHING).counts(forced=(1, 2, 3, 4))
    assert counts[FORCED] >= 1 and counts[NO_MATCH] >= N_OUTPUTS - 10


def test_every_reason_has_a_sentence() -> None:
    reasons = {REFUSED, SHORT, FORCED, MASKS, NO_MATCH, UNPAID, MISSED, BEHIND, BUDGET}
    assert reasons == SENTENCES.keys() and all(SENTENCES.values())
