"""What a request keeps, and what it does not, when it is preempted, replayed or forked from."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.core.groups import STATE_WINDOW, KVGroup
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.sched.request import by_phase, new_request
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Draft, Known, Proposer
from tests.sizes import config_of

PARAMS = TokenParams(seed=0, max_tokens=60)
DRAWN = 7


class Right(Proposer):
    """Of what is always drawn."""

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [Draft((DRAWN,) * k) for _ in requests]


def step(made: Scheduler) -> StepPlan:
    plan = made.plan()
    assert plan is not None
    made.commit(plan, StepResult((RowOutput(DRAWN),) * plan.n_logits))
    made.check()
    return plan


def test_who_is_preempted_waits_for_no_mask_and_is_a_prompt_again() -> None:
    asked = EngineRequest(1, (5,) * 9, PARAMS, emitted=(6, 6))
    request = new_request(asked, 1, 60, None)  # type: ignore[arg-type]  # has no blocks
    request.n_computed = request.n_known - 1
    request.masked.is_late = request.masked.is_jumping = True
    assert not request.n_left
    request.restart(0.0)
    assert request.n_left == 11
    assert by_phase([request]) == ([], [request])


def test_scores_that_were_told_before_a_replay_count() -> None:
    params = TokenParams(seed=0, max_tokens=0, n_prompt_logprobs=0)
    made = Scheduler(config_of(256, 4, 64, 24, 16, vocab_size=97))
    made.add(EngineRequest(1, (5,) * 9, params, n_scored=6))
    plan = made.plan()
    assert plan is not None and plan.n_logits == 2
    (event,) = made.commit(plan, StepResult((RowOutput(5),) * 2))
    assert event.finish == "length" and len(event.prompt_logprobs) == 2


def test_nobody_begins_with_a_state_that_lacks_accepted_drafts() -> None:
    """It is at a border, and takes the drafts of the row before in with the next."""
    states = KVGroup(16, STATE_WINDOW, 64, drafts=4)
    config = config_of(256, 4, 64, 24, 16, vocab_size=97, windows=(states,), max_draft_tokens=4)
    made = Scheduler(config, Right())
    made.add(EngineRequest(1, tuple(range(20, 31)), PARAMS))
    for _ in range(2):
        step(made)
    (parent,) = made.running
    assert parent.n_computed == 16 and len(parent.tokens) == 17
    made.add(EngineRequest(2, (*parent.tokens, 8), PARAMS, parent=1))
    plan = step(made)
    assert [row.start for row in plan.rows if row.slot != parent.slot] in ([], [0])
