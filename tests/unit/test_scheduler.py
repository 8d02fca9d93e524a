"""Single decisions of the scheduler, read off its plans."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepPlan, StepResult
from kvasir.core.request import EngineRequest, Standing
from kvasir.exec.rows import logit_rows
from kvasir.sched.scheduler import Scheduler
from tests.oracle_drafts import OracleProposer
from tests.sizes import config_of

BASE = TokenParams(seed=0, max_tokens=8, repetition_penalty=1.1)
"""With a penalty, for which samplers are told what was emitted."""


def config(**changes: Any) -> SchedulerConfig:
    values: dict[str, Any] = {
        "max_model_len": 128,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "n_blocks": 16,
        "block_size": 16,
    }
    return config_of(**(values | changes))


def request(i: int, n_prompt: int, **changes: object) -> EngineRequest:
    return EngineRequest(i, tuple(range(100, 100 + n_prompt)), replace(BASE, **changes))


def scheduler(*requests: EngineRequest, **changes: Any) -> Scheduler:
    made = Scheduler(config(**changes))
    for one in requests:
        made.add(one)
    return made


def step(made: Scheduler, *tokens: int) -> tuple[StepPlan, tuple[TokenEvent, ...]]:
    """Plan, draw ``tokens`` (7 when none are given), commit."""
    plan = made.plan()
    assert plan is not None
    outputs = tuple(RowOutput(token) for token in tokens or (7,) * plan.n_logits)
    events = made.commit(plan, StepResult(outputs))
    made.check()
    return plan, events


def test_prompts_that_are_computed_whole() -> None:
    """One that lacks room is the first of the next step; what is left is for those that fit."""
    made = scheduler(*(request(i, 20, max_tokens=1) for i in range(3)), whole_prompts=True)
    made.add(request(3, 12, max_tokens=1))
    lengths = [[len(row.tokens) for row in step(made)[0].rows] for _ in range(3)]
    assert lengths == [[20, 12], [20], [20]]
    assert made.plan() is None


def test_a_prompt_becomes_chunks_and_then_single_tokens() -> None:
    made = scheduler(request(1, 70))
    plans = [step(made)[0] for _ in range(5)]
    rows = [plan.rows[0] for plan in plans]
    assert [(row.start, len(row.tokens), row.n_logits) for row in rows] == [
        (0, 32, 0),
        (32, 32, 0),
        (64, 6, 1),
        (70, 1, 1),
        (71, 1, 1),
    ]
    assert [row.out_index for row in rows[2:]] == [0, 1, 2]
    assert [[(x.first, len(x.blocks)) for x in plan.tables] for plan in plans] == [
        [(0, 5)],
        [],
        [],
        [],
        [],
    ]
    assert plans[0].opens[0].prompt == tuple(range(100, 170))
    assert plans[4].commits == ((0, 7),)
    assert rows[3].tokens == (7,)


def test_single_tokens_go_before_chunks_and_newcomers() -> None:
    made = scheduler(request(1, 4), max_num_batched_tokens=8)
    step(made)
    made.add(request(2, 20))
    made.add(request(3, 3))
    plan, _ = step(made)
    assert [(row.slot, len(row.tokens)) for row in plan.rows] == [(0, 1), (1, 7)]
    assert plan.n_tokens == 8
    assert made.stats().n_waiting == 1


def test_slots_bound_the_running_requests() -> None:
    made = scheduler(*(request(i, 2, max_tokens=1) for i in range(6)))
    plan, events = step(made)
    assert len(plan.rows) == 4
    assert [event.finish for event in events] == ["length"] * 4
    plan, _ = step(made)
    assert sorted(opening.prompt[0] for opening in plan.opens) == [100, 100]
    assert len({row.slot for row in plan.rows}) == 2
    assert not made.has_work


def test_the_newest_token_is_named_by_its_row_while_it_is_drawn() -> None:
    made = scheduler(request(1, 3), request(2, 2))
    first = made.plan()
    second = made.plan()
    assert first is not None
    assert second is not None
    assert [row.tokens for row in second.rows] == [(-1,), (-2,)]
    with pytest.raises(KvasirError, match="2 plans are uncommitted"):
        made.plan()
    with pytest.raises(KvasirError, match="not the oldest uncommitted"):
        made.commit(second, StepResult((RowOutput(1), RowOutput(2))))
    with pytest.raises(KvasirError, match="1 outputs for 2 logit rows"):
        made.commit(first, StepResult((RowOutput(1),)))
    made.commit(first, StepResult((RowOutput(11), RowOutput(22))))
    third = made.plan()
    assert third is not None
    assert third.commits == ((0, 11), (1, 22))
    assert [row.tokens for row in third.rows] == [(-1,), (-2,)]


def test_samplers_without_penalties_are_told_nothing() -> None:
    made = scheduler(request(1, 3), request(2, 2, repetition_penalty=1.0))
    step(made, 11, 22)
    plan, _ = step(made)
    assert plan.commits == ((0, 11),)
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        assert TokenParams(seed=0, max_tokens=1, **{name: 0.5}).has_penalties
    assert not TokenParams(seed=0, max_tokens=1).has_penalties
    assert made.stats().output_tokens == 4


def test_a_row_of_a_finished_request_is_dropped() -> None:
    made = scheduler(request(1, 3, stop_ids=(9,)))
    first, second = made.plan(), made.plan()
    assert first is not None
    assert second is not None
    events = made.commit(first, StepResult((RowOutput(9),)))
    assert (events[0].finish, events[0].stop_id) == ("stop", 9)
    assert made.stats().blocks_free == 16
    assert made.commit(second, StepResult((RowOutput(5),))) == ()
    assert not made.has_work


def test_nothing_is_planned_past_the_last_token() -> None:
    made = scheduler(request(1, 3, max_tokens=1))
    assert made.plan() is not None
    assert made.plan() is None


@pytest.mark.parametrize(
    ("min_tokens", "expected"), [(0, ("stop", 1)), (2, ("stop", 3)), (8, ("length", 8))]
)
def test_stop_ids_count_only_after_min_tokens(min_tokens: int, expected: tuple[str, int]) -> None:
    made = scheduler(request(1, 3, stop_ids=(7,), min_tokens=min_tokens))
    news: list[TokenEvent] = []
    while made.has_work:
        news += step(made)[1]
    assert (news[-1].finish, sum(len(event.tokens) for event in news)) == expected


def test_min_tokens_beyond_max_tokens_ends_at_max_tokens() -> None:
    made = scheduler(request(1, 3, stop_ids=(7,), min_tokens=50, max_tokens=2))
    step(made)
    _, events = step(made)
    assert events[0].finish == "length"


@pytest.mark.parametrize("n_prompt", [129, 1280])
def test_a_prompt_beyond_the_limit_is_refused_with_both_counts(n_prompt: int) -> None:
    with pytest.raises(RequestError, match=f"prompt has {n_prompt} tokens, the limit is 128"):
        scheduler(request(1, n_prompt))


def test_a_prompt_that_fills_the_context_can_only_be_scored() -> None:
    with pytest.raises(RequestError, match="128 tokens and fills the limit of 128"):
        scheduler(request(1, 128))
    made = scheduler(request(1, 128, max_tokens=0, n_prompt_logprobs=0))
    news: list[TokenEvent] = []
    while made.has_work:
        news += step(made)[1]
    assert sum(len(event.prompt_logprobs) for event in news) == 127


def test_outputs_end_where_the_context_ends() -> None:
    made = scheduler(request(1, 120, max_tokens=1000))
    news: list[TokenEvent] = []
    while made.has_work:
        news += step(made)[1]
    assert sum(len(event.tokens) for event in news) == 8
    assert news[-1].finish == "length"


def test_blocks_for_exactly_one_request_suffice_and_one_less_is_refused() -> None:
    made = scheduler(request(1, 40, max_tokens=25), request(2, 40, max_tokens=25), n_blocks=4)
    while made.has_work:
        step(made)
    assert made.stats().blocks_free == 4
    with pytest.raises(RequestError, match="need 4 blocks of 16, there are 3"):
        scheduler(request(1, 40, max_tokens=25), n_blocks=3)


def test_two_hundred_requests_of_60_percent_of_the_blocks_all_finish() -> None:
    made = scheduler(*(request(i, 60, max_tokens=36) for i in range(200)), n_blocks=10)
    finished: list[int] = []
    while made.has_work:
        finished += [event.id for event in step(made)[1] if event.finish == "length"]
    assert finished == list(range(200))
    assert made.stats().n_preemptions > 0
    assert made.stats().output_tokens == 200 * 36


def test_the_latest_request_gives_up_its_blocks_and_keeps_its_tokens() -> None:
    made = scheduler(
        request(1, 30, max_tokens=40), request(2, 30, max_tokens=40), n_blocks=5, block_size=16
    )
    plans: list[StepPlan] = []
    while not made.stats().n_preemptions:
        plans.append(step(made)[0])
    assert (made.stats().n_running, made.stats().n_waiting) == (1, 1)
    assert [row.slot for row in plans[-1].rows] == [0]
    while not plans[-1].opens:
        plans.append(step(made)[0])
    opening = plans[-1].opens[0]
    assert opening.prompt == tuple(range(100, 130))
    assert opening.output == (7,) * len(opening.output)
    assert plans[-1].rows[-1].out_index == 0 or plans[-1].rows[-1].n_logits == 0


def test_prompt_scores_skip_nothing_and_cost_no_extra_token() -> None:
    made = scheduler(request(1, 10, n_prompt_logprobs=0), max_num_batched_tokens=4)
    rows = [step(made)[0].rows[0] for _ in range(3)]
    assert [row.targets for row in rows] == [
        (101, 102, 103, 104),
        (105, 106, 107, 108),
        (109, -1),
    ]
    assert rows[2].n_logits == 2
    assert rows[2].out_index + 1 == 0


def test_prompt_scores_are_told_as_they_are_computed() -> None:
    made = scheduler(request(1, 10, n_prompt_logprobs=0), max_num_batched_tokens=4)
    news = [step(made)[1][0] for _ in range(3)]
    assert [len(event.prompt_logprobs) for event in news] == [4, 4, 1]
    assert [len(event.tokens) for event in news] == [0, 0, 1]


def test_the_scores_of_a_step_are_bounded_over_all_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.sched.making.MAX_SCORES", 6)
    monkeypatch.setattr("kvasir.sched.making.MAX_LOGPROBS", 1)
    plain = request(3, 9, max_tokens=1)
    scored = [request(i, 5, max_tokens=0, n_prompt_logprobs=0) for i in (1, 2)]
    made = scheduler(*scored, plain)
    first, _ = step(made)
    assert [row.n_logits for row in first.rows] == [4, 2, 1]
    assert [len(row.tokens) for row in first.rows] == [4, 2, 9], "what is not scored has no bound"
    second, events = step(made)
    assert [row.targets for row in second.rows] == [(103, 104)]
    assert (events[0].finish, len(events[0].prompt_logprobs)) == ("length", 2)


def test_who_wants_scores_takes_no_slot_when_those_of_a_step_are_spent() -> None:
    """195 tokens with 20 alternatives each."""
    scored = [request(i, 120, max_tokens=0, n_prompt_logprobs=20) for i in range(1, 9)]
    made = scheduler(
        *scored,
        replace(request(9, 3, max_tokens=1), standing=Standing("batch")),
        max_num_seqs=8,
        max_num_batched_tokens=512,
        n_blocks=80,
    )
    first, _ = step(made)
    assert sorted(len(row.tokens) for row in first.rows) == [3, 76, 119]
    assert (made.stats().n_running, made.stats().n_waiting) == (1, 6)


def test_scoring_alone_leaves_the_last_token_out() -> None:
    made = scheduler(request(1, 5, max_tokens=0, n_prompt_logprobs=2))
    plan, events = step(made)
    assert plan.rows[0].tokens == (100, 101, 102, 103)
    assert plan.rows[0].targets == (101, 102, 103, 104)
    assert (events[0].finish, len(events[0].prompt_logprobs)) == ("length", 4)
    assert not made.has_work


@pytest.mark.parametrize("one", [request(1, 5, max_tokens=0), request(1, 1, max_tokens=0)])
def test_a_request_without_work_ends_at_once(one: EngineRequest) -> None:
    made = scheduler(one)
    assert made.plan() is None
    assert made.take_events() == (TokenEvent(1, finish="length"),)
    assert not made.has_work


def test_a_replayed_request_that_had_ended_ends_at_once() -> None:
    made = scheduler(EngineRequest(1, (1, 2), replace(BASE, stop_ids=(5,)), emitted=(4, 5)))
    assert made.take_events() == (TokenEvent(1, finish="stop", stop_id=5),)


def test_a_running_id_is_refused_and_may_be_used_again_afterwards() -> None:
    made = scheduler(request(1, 3, max_tokens=1))
    with pytest.raises(KvasirError, match="id 1 is running already") as caught:
        made.add(request(1, 5))
    assert not isinstance(caught.value, RequestError)
    step(made)
    made.add(request(1, 5))
    assert made.stats().n_waiting == 1


@pytest.mark.parametrize(("token", "code"), [(-1, "model_numerics"), (-2, "no_token_left")])
def test_a_row_that_draws_nothing_fails_its_request_alone(token: int, code: str) -> None:
    made = scheduler(request(1, 3), request(2, 3))
    _, events = step(made, token, 7)
    assert (events[0].finish, events[0].error_code) == ("error", code)
    assert events[0].error is not None
    assert events[1] == TokenEvent(2, tokens=(7,))
    assert made.stats().n_failed == 1


def test_a_chain_draft_commits_what_the_target_drew() -> None:
    made = Scheduler(config(max_draft_tokens=3), OracleProposer({1: (7, 8, 9, 10, 11, 12)}, 500))
    made.add(request(1, 3))
    step(made)
    plan, events = step(made, 8, 9, 33, 11)
    assert plan.rows[0].tokens == (7, 8, 9, 10)
    assert (plan.rows[0].n_logits, plan.rows[0].out_index) == (4, 1)
    assert events[0].tokens == (8, 9, 33)
    plan, _ = step(made)
    assert (plan.rows[0].start, plan.rows[0].tokens[0]) == (6, 33)
    assert plan.commits == ((0, 8), (0, 9), (0, 33))


def test_an_accepted_branch_is_moved_together() -> None:
    made = Scheduler(
        config(max_draft_tokens=4), OracleProposer({1: (7, 8, 9, 10)}, 500, n_siblings=1)
    )
    made.add(request(1, 3))
    step(made)
    plan, events = step(made, 8, 0, 9, 0, 10)
    row = plan.rows[0]
    assert (row.tokens, row.parents) == ((7, 9, 8, 10, 9), (-1, 0, 0, 2, 2))
    assert events[0].tokens == (8, 9, 10)
    plan, _ = step(made)
    assert [(move.src, move.dst) for move in plan.moves] == [(5, 4), (7, 5)]
    assert (plan.rows[0].start, plan.rows[0].tokens[0]) == (6, 10)


def test_nothing_past_a_stop_is_committed() -> None:
    made = Scheduler(config(max_draft_tokens=3), OracleProposer({1: (7, 8, 9, 10)}, 500))
    made.add(request(1, 3, stop_ids=(9,)))
    step(made)
    _, events = step(made, 8, 9, 10, 11)
    assert (events[0].tokens, events[0].finish, events[0].stop_id) == ((8, 9), "stop", 9)


def test_a_preempted_request_leaves_no_moves_and_no_commits_behind() -> None:
    answers = {1: (7,) * 40, 2: (7, 8) * 20}
    made = Scheduler(
        config(max_draft_tokens=4, n_blocks=4), OracleProposer(answers, 500, n_siblings=1)
    )
    made.add(request(1, 16, max_tokens=30))
    made.add(request(2, 14, max_tokens=30))
    plans: list[StepPlan] = []
    while not plans or not any(opening.output for opening in plans[-1].opens):
        plan = made.plan()
        assert plan is not None
        drawn = [
            answers[1 + item.slot][item.out_index] for row in plan.rows for item in logit_rows(row)
        ]
        made.commit(plan, StepResult(tuple(RowOutput(token) for token in drawn)))
        made.check()
        plans.append(plan)
    assert made.stats().n_preemptions == 1
    (reopened,) = plans[-1].opens
    assert reopened.slot not in {slot for slot, _ in plans[-1].commits}
    assert {row.slot for row in plans[-1].rows} >= {move.slot for move in plans[-1].moves}
