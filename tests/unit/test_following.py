"""What a draft program takes in, and when: plans say it, and no more than is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvasir.core.errors import KvasirError
from kvasir.core.params import TokenParams
from kvasir.core.plan import (
    Copy,
    Row,
    RowOutput,
    SlotOpen,
    StepPlan,
    StepResult,
    Transfer,
    reference,
)
from kvasir.core.request import EngineRequest
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Draft, Known
from kvasir.speculate.executor import ExecutorProposer
from tests.planned import placed, step_plan
from tests.sizes import changed, config_of

CONFIG = config_of(
    256, 2, 64, 32, 16, vocab_size=97, max_draft_tokens=3, lazy_drafts=True,
    enable_prefix_caching=True,
)  # fmt: skip
PROMPT = tuple(range(5, 38))
WRONG = 80


class Switched(ExecutorProposer):
    """Asks while it is on."""

    is_on = True

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        drafts = super().propose(requests, k)
        return drafts if self.is_on else [replace(draft, n_asked=0) for draft in drafts]


class Driven:
    """A scheduler of one request whose steps draw 0, 1, 2, …, and whose drafts are these, too."""

    def __init__(self, **changes: int) -> None:
        self.proposer = Switched()
        self.made = Scheduler(changed(CONFIG, **changes), self.proposer)
        self.n_drawn = 0

    def add(self, request_id: int = 0, prompt: tuple[int, ...] = PROMPT) -> None:
        params = TokenParams(seed=1, max_tokens=100)
        self.made.add(EngineRequest(request_id, prompt, params))

    def step(self, n_right: int = 3) -> tuple[StepPlan, tuple[Row, ...]]:
        """Plan and commit one, of whose drafts the first ``n_right`` are drawn."""
        plan = self.made.plan()
        assert plan is not None and plan.follows is not None
        (row,) = plan.rows
        first = self.n_drawn
        outputs = [first + i for i in range(row.n_logits)]
        if row.n_logits > 1:
            right = min(n_right, row.n_logits - 1)
            if right < row.n_logits - 1:
                outputs[right:] = [WRONG] * (row.n_logits - right)
            self.n_drawn += right
        self.n_drawn += bool(row.n_logits)
        drafts = tuple(self.n_drawn + i for i in range(row.n_drafts))
        result = StepResult(tuple(map(RowOutput, outputs)), drafts=(drafts,) if drafts else ())
        self.made.commit(plan, result)
        return plan, plan.follows


def test_a_prompt_is_taken_in_when_something_is_drafted_behind_it() -> None:
    driven = Driven()
    driven.add()
    assert driven.step()[1] == (), "nothing is drafted yet"
    plan, follows = driven.step()
    assert follows == (Row(0, 0, (*PROMPT, 0), 0),)
    assert plan.rows[0].n_drafts == 3
    plan, follows = driven.step()
    assert plan.rows[0].tokens == (1, 2, 3, 4)
    assert follows == (Row(0, 37, (4,), 0),), "it has those of which it drafted the next ones"
    plan, _ = driven.step(n_right=1)
    assert plan.rows[0].tokens == (5, 6, 7, 8)
    plan, follows = driven.step()
    assert (plan.rows[0].start, plan.rows[0].tokens) == (40, (WRONG, 8, 9, 10))
    assert follows == (Row(0, 43, (10,), 0),)


def test_it_takes_in_nothing_while_nothing_is_drafted_and_all_of_it_then() -> None:
    driven = Driven()
    driven.add()
    driven.step()
    driven.step()
    driven.proposer.is_on = False
    plan, follows = driven.step()
    assert (len(plan.rows[0].tokens), follows) == (4, ()), "what was drafted is verified"
    for _ in range(5):
        assert driven.step()[1] == ()
    driven.proposer.is_on = True
    plan, (row,) = driven.step()
    assert (row.start, row.end) == (37, plan.rows[0].start + 1)


def test_a_long_prompt_comes_in_chunks() -> None:
    driven = Driven(max_num_batched_tokens=17)
    driven.add()
    while not driven.n_drawn:
        assert driven.step()[1] == ()
    found = []
    while True:
        plan, follows = driven.step()
        found += [len(row.tokens) for row in follows]
        if plan.rows[0].n_drafts:
            break
        assert plan.rows[0].n_logits == 1, "the target goes on"
    assert found == [17, 17, 2]


def test_another_with_the_same_prompt_finds_what_was_taken_in() -> None:
    driven = Driven()
    driven.add()
    driven.step()
    driven.step()
    driven.made.cancel(0)
    driven.made.take_events()
    driven.add(1)
    driven.step()
    _, (row,) = driven.step()
    assert row.start == 32, "two full blocks of it"


def test_another_finds_nothing_where_nothing_was_taken_in() -> None:
    driven = Driven()
    driven.proposer.is_on = False
    driven.add()
    driven.step()
    driven.step()
    driven.made.cancel(0)
    driven.made.take_events()
    driven.proposer.is_on = True
    driven.add(1)
    driven.step()
    _, (row,) = driven.step()
    assert row.start == 0


@pytest.mark.parametrize("n_taken", [1, 2])
def test_an_equal_block_of_another_lacks_what_was_taken_in_before(n_taken: int) -> None:
    """In the second of three chunks of a prompt, or the third."""
    driven = Driven(max_num_batched_tokens=17)
    driven.add()
    while not driven.step()[1]:
        pass
    for _ in range(n_taken - 1):
        driven.step()
    (request,) = driven.made._queues.running
    (other,) = driven.made._kv.cache.pools[0].allocate(1)
    request.table.replace(0, 1, other)
    request.vouched.node = None
    _, (row,) = driven.step()
    assert row.start == 16


class Other(Switched):
    """Another drafter's tokens, where it says so."""

    others: tuple[int, ...] = ()

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        if not self.others:
            return super().propose(requests, k)
        return [Draft(self.others, n_asked=3) for _ in requests]


def test_what_it_drafted_itself_is_no_other_draft() -> None:
    """Its entries of own drafts stand where the other's are to be."""
    driven = Driven()
    driven.proposer = driven.made._drafts._proposer = Other()
    driven.add()
    for _ in range(3):
        plan, _ = driven.step()
    driven.proposer.others = (70, 71)
    plan, (row,) = driven.step()
    start = plan.rows[0].start
    assert plan.rows[0].tokens[1:] == (70, 71)
    assert (row.start, row.tokens[-2:]) == (start + 1, (70, 71))


@pytest.mark.parametrize("how", ["copied", "loaded", "written"])
def test_what_becomes_of_a_block_is_known(how: str) -> None:
    """One where something else is put lacks its draft entries."""
    driven = Driven()
    driven.add()
    driven.step()
    driven.step()
    (request,) = driven.made._queues.running
    first, second = request.table.held(0)[:2]
    following = driven.made._drafts._following
    assert following is not None and {first, second} <= following._whole
    row = Row(0, 0, PROMPT[:16], 0)
    following.take(
        [request] if how == "written" else [],
        [row] if how == "written" else [],
        [Copy((second,), (first,), 16)] if how == "copied" else [],
        [Transfer(b"name", 0, first)] if how == "loaded" else [],
    )
    assert first not in following._whole and second in following._whole


def test_choices_of_a_prompt_take_it_in_once() -> None:
    made, executor = Scheduler(CONFIG, ExecutorProposer()), FakeExecutor(CONFIG.sizes, misses=0)
    for i in range(2):
        params = TokenParams(seed=i, max_tokens=12)
        made.add(EngineRequest(i, PROMPT, params))
    starts: dict[int, int] = {}
    while (plan := made.plan()) is not None:
        for row in plan.follows or ():
            starts.setdefault(row.slot, row.start)
        made.commit(plan, executor.run(plan))
    executor.close()
    assert sorted(starts.values()) == [0, 32]
    assert made.stats().n_accepted == made.stats().n_drafted > 10


def opened() -> FakeExecutor:
    executor = FakeExecutor(CONFIG.sizes, misses=0)
    row = placed(0, 0, PROMPT, ((0, 1, 2),))
    params = TokenParams(seed=1, max_tokens=9)
    executor.run(step_plan(0, (row,), (SlotOpen(0, params, PROMPT),)))
    return executor


@pytest.mark.parametrize(
    ("follows", "message"),
    [
        ((Row(1, 0, (1,), 0),), "followed beyond -1"),
        ((Row(0, 33, (-1, 3), 0),), "followed beyond 34"),
        ((Row(0, 0, PROMPT, 0), Row(0, 0, (5,), 0)), "followed twice"),
        ((Row(0, 0, (), 0),), "is followed"),
        ((Row(0, 0, PROMPT, 0),), "drafts behind 33 of its tokens"),
        ((Row(0, 0, PROMPT * 2, 0),), "takes in 66 tokens"),
    ],
)
def test_plans_that_follow_wrongly_are_refused(follows: tuple[Row, ...], message: str) -> None:
    plan = StepPlan(1, (Row(0, 33, (reference(0),), 1, 1, n_drafts=2),), follows=follows)
    with pytest.raises(KvasirError, match=message):
        opened().run(plan)
