"""Who speculates waits for its newest token, and nobody else does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from msgspec.structs import replace

from kvasir.core.params import TokenParams
from kvasir.core.plan import StepPlan
from kvasir.core.request import EngineRequest, Standing
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Draft, Known, Proposer
from kvasir.speculate.executor import ExecutorProposer
from kvasir.speculate.lookup import Lookup
from kvasir.timing.cost import CostModel, Load
from tests.oracle_drafts import OracleProposer
from tests.sizes import config_of

CONFIG = config_of(256, 4, 64, 64, 16, vocab_size=97, max_draft_tokens=4)
N_OUTPUTS = 30


class Idle(Proposer):
    """Never drafts; counts how often it is asked."""

    def __init__(self) -> None:
        self.n_asked = 0

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        assert k == 4
        self.n_asked += 1
        return [Draft() for _ in requests]


def drive(
    proposer: Proposer | None, wanted: Mapping[int, int] | None = None
) -> tuple[int, list[StepPlan], dict[int, tuple[int, ...]]]:
    """Four requests, each step planned while the one before runs: steps that were, all plans, and
    the answers. ``wanted``: by id the drafts of a step, at most."""
    made, executor = Scheduler(CONFIG, proposer), FakeExecutor(CONFIG.sizes, misses=0)
    for i in range(4):
        most = -1 if wanted is None else wanted[i]
        params = TokenParams(seed=i, max_tokens=N_OUTPUTS, max_drafts=most)
        made.add(EngineRequest(i, tuple(range(i, i + 5)), params))
    n_overlapped, plans = 0, []
    answers: dict[int, tuple[int, ...]] = {}
    running = made.plan()
    while running is not None:
        plans.append(running)
        following = made.plan()
        n_overlapped += following is not None
        for event in made.commit(running, executor.run(running)):
            answers[event.id] = answers.get(event.id, ()) + event.tokens
        running = following or made.plan()
    executor.close()
    assert not made.has_work
    return n_overlapped, plans, answers


def test_a_proposer_that_drafts_nothing_ends_no_overlap() -> None:
    n_overlapped, plans, answers = drive(None)
    assert n_overlapped == len(plans) - 1 == N_OUTPUTS - 1
    idle = Idle()
    assert drive(idle) == (n_overlapped, plans, answers)
    assert 0 < idle.n_asked <= len(plans) + 1, "once a step, for all requests"


@pytest.mark.parametrize("n_siblings", [0, 1])
def test_others_go_on_while_one_waits_for_its_newest_token(n_siblings: int) -> None:
    _, _, answers = drive(None)
    known = {2: answers[2]}
    n_overlapped, plans, drafted = drive(OracleProposer(known, 97, n_siblings=n_siblings))
    assert drafted == answers
    drafting = [row for plan in plans for row in plan.rows if row.n_logits > 1]
    assert drafting and len({row.slot for row in drafting}) == 1
    others = {row.slot for plan in plans for row in plan.rows} - {drafting[0].slot}
    rows = [{row.slot for row in plan.rows} for plan in plans[1:]]
    assert all(others <= slots for slots in rows[: N_OUTPUTS - 2]), "in every step"
    assert n_overlapped == len(plans) - 1


@pytest.mark.parametrize("by_executor", [False, True])
def test_a_request_is_drafted_for_as_far_as_it_wants(by_executor: bool) -> None:
    """One that wants none keeps its overlapped steps, beside others that are drafted for."""
    _, _, answers = drive(None)
    wanted = dict(enumerate((-1, 0, 1, 3)))
    proposer = ExecutorProposer() if by_executor else OracleProposer(answers, 97)
    _, plans, found = drive(proposer, wanted)
    assert found == answers
    slots = {row.slot: row.n_drafts for plan in plans for row in plan.rows}
    assert sorted(slots) == list(range(4))
    longest = dict.fromkeys(slots, 0)
    for plan in plans[1:]:  # the first computes prompts
        for row in plan.rows:
            longest[row.slot] = max(longest[row.slot], len(row.tokens) - 1, row.n_drafts)
    assert longest == {0: 4, 1: 0, 2: 1, 3: 3}
    n_overlapped, plans, _ = drive(OracleProposer(answers, 97), dict.fromkeys(range(4), 0))
    assert n_overlapped == len(plans) - 1
    idle = Idle()
    drive(idle, dict.fromkeys(range(4), 0))
    assert idle.n_asked == 0


def test_a_stream_that_drafts_keeps_its_pace() -> None:
    """A prompt of a class below the drafting stream's and above the other one's."""
    config = config_of(1024, 4, 512, 256, 16, vocab_size=97, max_draft_tokens=4, itl_target=1e-6)
    executor = FakeExecutor(config.sizes)
    made = Scheduler(config, OracleProposer({0: (1,) * N_OUTPUTS}, 97))

    def add(i: int, n_prompt: int, standing: Standing) -> None:
        params = TokenParams(seed=i, max_tokens=N_OUTPUTS)
        made.add(EngineRequest(i, (5,) * n_prompt, params, standing=standing))

    add(0, 4, Standing("realtime"))
    add(1, 4, Standing("batch"))
    for _ in range(2):
        plan = made.plan()
        assert plan is not None
        made.commit(plan, executor.run(plan))
    add(2, 900, Standing("standard"))
    plan = made.plan()
    assert plan is not None
    executor.close()
    assert sorted(len(row.tokens) for row in plan.rows) == [1, 5, 16]


def asked_again(
    seconds: Callable[[int], float], costs: CostModel | None = None
) -> tuple[Scheduler, list[int]]:
    """A prompt whose answer is looked up, again and again, where steps take ``seconds`` by their
    tokens: tokens of each step of the last time."""
    made = Scheduler(CONFIG, Lookup(3, 16, 1000), costs=costs)
    executor = FakeExecutor(CONFIG.sizes)
    for i in range(12):
        steps = []
        made.add(EngineRequest(i, (5, 6, 7, 8), TokenParams(seed=3, max_tokens=N_OUTPUTS)))
        while (plan := made.plan()) is not None:
            steps.append(plan.n_tokens)
            made.commit(plan, replace(executor.run(plan), seconds=seconds(plan.n_tokens)))
    executor.close()
    return made, steps


def test_what_steps_took_says_whether_drafts_pay() -> None:
    made, steps = asked_again(lambda n: 0.01)
    assert max(steps[1:]) == 5 and len(steps) < N_OUTPUTS // 3
    stats = made.stats()
    assert stats.n_accepted > 0.9 * stats.n_drafted > 0
    _, steps = asked_again(lambda n: 0.01 * n)
    assert max(steps[1:]) == 1


class Observed(CostModel):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, float]] = []

    def observe(self, load: Load, seconds: float) -> None:
        self.seen.append((load.tokens, round(seconds, 3)))
        super().observe(load, seconds)


def test_costs_are_learnt_as_if_nobody_drafted() -> None:
    """A drafted token costs less than one of a prompt, and who foretells steps knows no drafts."""
    costs = Observed()
    made, _ = asked_again(lambda n: 0.01 if n < 4 else 0.012, costs=costs)
    assert made.stats().n_drafts > 20
    assert {tokens for tokens, _ in costs.seen} == {1, 4}
    assert set(costs.seen[-20:]) == {(4, 0.012), (1, 0.01)}, "the prompt, and one token"


def test_drafts_that_were_predicted_are_counted() -> None:
    """Those that were drawn, and those that were not."""
    made, executor = Scheduler(CONFIG, Lookup(2, 8)), FakeExecutor(CONFIG.sizes)

    def answer(i: int, expected: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
        params = TokenParams(seed=3, max_tokens=N_OUTPUTS)
        made.add(EngineRequest(i, (5, 6, 7, 8), params, prediction=expected))
        tokens: tuple[int, ...] = ()
        n_hits = n_misses = 0
        while (plan := made.plan()) is not None:
            for event in made.commit(plan, replace(executor.run(plan), seconds=0.01)):
                tokens += event.tokens
                n_hits += event.prediction_hits
                n_misses += event.prediction_misses
        return tokens, n_hits, n_misses

    told, *counts = answer(0, ())
    assert counts == [0, 0]
    again, n_hits, n_misses = answer(1, told)
    assert again == told and n_hits > N_OUTPUTS // 2 and not n_misses
    wrong = tuple([(x + (j % 7 == 6)) % 97 for j, x in enumerate(told)])
    again, n_hits, n_misses = answer(2, wrong)
    assert again == told and n_hits > 5 and n_misses > 1
    stats = made.stats()
    assert stats.n_drafted > stats.n_accepted > 20
    executor.close()


def test_nothing_is_known_of_who_has_ended() -> None:
    made, _ = asked_again(lambda n: 0.01)
    drafts = made._drafts
    assert not drafts._running and not drafts._controller._survival._own
