"""Drafts are computed as far as they pay, by what was seen of them and of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from kvasir.core.plan import Row, StepPlan
from kvasir.core.request import Context
from kvasir.sched.drafts import draft_passes
from kvasir.speculate.base import Draft, Known, Proposer
from kvasir.speculate.controller import HORIZON, Ask, Controller
from kvasir.speculate.curve import KNOTS, Curve
from kvasir.speculate.passes import Chains, PassCosts
from kvasir.speculate.several import DrafterPart, SeveralDrafters
from kvasir.speculate.survival import PRIOR, Survival

K = 8
NOWHERE = Context()


@dataclass(frozen=True)
class Asked:
    id: int
    tokens: tuple[int, ...] = (1, 2)
    n_prompt: int = 1
    drafted: tuple[int, ...] = ()
    siblings: tuple[tuple[int, ...], ...] = ()
    context: Context = NOWHERE


def draft(evidence: int = 4) -> Draft:
    return Draft(tuple(range(K)), evidence=evidence)


def trained(seconds: Callable[[int], float]) -> Controller:
    """It has seen steps of all sizes."""
    made = Controller()
    for n in (*range(1, 66), 128) * 4:
        made.decoded(n, seconds(n))
    return made


def flat(n: int) -> float:
    """Bound by memory: tokens are free."""
    return 0.01 + 1e-6 * n


def linear(n: int) -> float:
    """Bound by arithmetic: each costs what the first does."""
    return 0.01 * n


def test_free_tokens_are_all_taken() -> None:
    assert trained(flat).chosen([Asked(0)], [draft()], 0, 0.0) == [draft()]


def test_dear_tokens_are_not_taken() -> None:
    assert trained(linear).chosen([Asked(0)], [draft()], 0, 0.0) == [draft().head(0)]


def test_sure_drafts_go_before_others() -> None:
    made = trained(lambda n: 0.01 * (1 + 0.3 * max(0, n - 2)))
    sure, unsure = made.chosen([Asked(0), Asked(1)], [draft(60), draft(1)], 0, 0.0)
    assert len(sure.tokens) > 2 and not unsure.tokens


def test_one_that_turns_bad_is_off_soon_and_tried_again() -> None:
    made = trained(lambda n: 0.01 * (1 + 0.07 * (n - 1)))
    asked = Asked(0)
    for _ in range(50):
        (chosen,) = made.chosen([asked], [draft(8)], 0, 0.0)
        assert chosen.tokens
        made.drew(asked, chosen, range(len(chosen.tokens)))
    n_steps = 0
    while (chosen := made.chosen([asked], [draft(8)], 0, 0.0)[0]).tokens:
        made.drew(asked, chosen, ())
        n_steps += 1
    assert n_steps <= 32
    n_tried = 0
    for _ in range(1000):
        (chosen,) = made.chosen([asked], [draft(8)], 0, 0.0)
        if chosen.tokens:
            made.drew(asked, chosen, ())
            n_tried += len(chosen.tokens)
    assert 5 < n_tried < 60, "of a step each takes 7 %"
    for _ in range(60):
        (chosen,) = made.chosen([asked], [draft(8)], 0, 0.0)
        made.drew(asked, chosen, range(len(chosen.tokens))) if chosen.tokens else None
    assert len(made.chosen([asked], [draft(8)], 0, 0.0)[0].tokens) == K, "it turned good again"


def test_who_waits_alone_must_gain_a_token() -> None:
    """All others go on in the step that it misses."""
    made = trained(flat)
    weak = Draft((1,), evidence=1)
    assert made.chosen([Asked(0)], [weak], 0, 0.0) == [weak]
    assert made.chosen([Asked(0)], [weak], 3, 0.0) == [weak.head(0)]
    assert made.chosen([Asked(0)], [draft(60)], 3, 0.0) == [draft(60)]
    both = made.chosen([Asked(0), Asked(1)], [weak, Draft()], 0, 0.0)
    assert both == [weak.head(0), Draft()]


def test_drafts_without_evidence_pass_as_they_are() -> None:
    asked = Draft((5, 6), n_asked=2)
    assert trained(linear).chosen([Asked(0)], [asked], 0, 0.0) == [asked]
    fixed = Controller(is_adaptive=False)
    fixed.decoded(1, 1.0)
    assert fixed.chosen([Asked(0)], [draft()], 0, 0.0) == [draft()]


def test_survival_is_learnt_by_class_and_by_request() -> None:
    made = Survival()
    assert made.of(0, 4) == pytest.approx(PRIOR[2])
    for _ in range(200):
        made.drew(1, 5, 4, 4)
    assert made.of(0, 4) > 0.95
    assert made.of(0, 3) == pytest.approx(PRIOR[1]), "another class"
    for _ in range(10):
        made.drew(2, 5, 4, 0)
    assert made.of(2, 4) < 0.6 < made.of(0, 4)
    made.ended(2)
    assert made.of(2, 4) == made.of(0, 4)


def test_a_curve_follows_what_it_saw() -> None:
    made = Curve()
    before = made.seconds(8) / made.seconds(1)
    made.observe(1, 0.02)
    assert made.seconds(1) == pytest.approx(0.02)
    assert made.seconds(8) == pytest.approx(0.02 * before), "its shape, before it was seen"
    for _ in range(60):
        made.observe(8, 0.1)
    assert made.seconds(8) == pytest.approx(0.1, rel=0.02)
    assert made.seconds(1) == pytest.approx(0.02)
    for n in range(1, KNOTS[-1] + 5):
        assert 0 < made.seconds(n) < 10


def ask(request_id: int = 0, lag: int = 0) -> Ask:
    return Ask(Asked(request_id), K, 4, lag, 1000)


def drafting(seconds: float, step: Callable[[int], float] = flat) -> Controller:
    """Its draft program takes ``seconds`` a token, of a step of 10 ms."""
    made = trained(step)
    for _ in range(40):
        made.drafted([1, 1, 1], 3 * seconds)
        made.drafted([64], 64 * seconds)
    return made


def test_a_draft_model_is_asked_for_less_the_longer_it_takes() -> None:
    counts = [drafting(x).asked([ask()], 0, 0.0)[0] for x in (1e-5, 1e-3, 3e-3, 9e-3)]
    assert counts[0] == K
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0 < counts[1]


def test_a_draft_model_that_is_wrong_is_off_soon_and_asked_again() -> None:
    made, asked = drafting(5e-4), Asked(0)
    n_steps = 0
    while n := made.asked([ask()], 0, 0.0)[0]:
        made.drew(asked, draft().head(n), ())
        n_steps += 1
    assert n_steps <= 32
    counts = [made.asked([ask()], 0, 0.0)[0] for _ in range(3000)]
    assert any(counts), "it may have turned good"


def test_what_it_lacks_must_pay_too() -> None:
    made = drafting(3e-4)
    near, far = (made.asked([ask(lag=lag)], 0, 0.0)[0] for lag in (8, 100 * HORIZON))
    assert far == 0 < near


def test_steps_of_many_streams_have_no_room_for_drafts() -> None:
    counts = drafting(1e-3, linear).asked([ask(i) for i in range(12)], 0, 0.0)
    assert counts == [0] * 12


def test_who_misses_a_step_must_gain_a_token() -> None:
    made = drafting(1e-5)
    short = Ask(Asked(0), 1, 4, 0, 1000)
    assert made.asked([short], 0, 0.0) == [1]
    assert made.asked([short], 2, 0.0) == [0], "others go on meanwhile"


def test_fewer_than_a_user_wants_are_none() -> None:
    made = Controller(is_adaptive=False, n_least=3)
    asks = [Ask(Asked(i), n, 4, 0, 99) for i, n in enumerate((2, 3, 8))]
    assert made.asked(asks, 0, 0.0) == [0, 3, 8]
    drafts = [draft().head(n) for n in (2, 3)]
    assert made.chosen([Asked(0), Asked(1)], drafts, 0, 0.0) == [draft().head(0), draft().head(3)]


def test_passes_cost_a_share_of_a_step_before_one_was_measured() -> None:
    made = PassCosts(0.1)
    assert made.seconds(1, 0.02) == pytest.approx(0.002)
    made.observe([1, 1, 4], 0.003)
    assert 2 * made.seconds(1, 0.02) + made.seconds(4, 0.02) == pytest.approx(0.003, rel=0.1)
    assert made.seconds(2048, 0.02) == pytest.approx(4 * made.seconds(512, 0.02))
    assert made.longest(made.seconds(64, 0.02), 0.02) == 64


def test_a_first_step_that_took_long_is_forgotten() -> None:
    """What a step takes without drafts is measured now and then, however sure they seem."""
    made, asked, counts = Controller(draft_share=0.15), Asked(0), list[int]()
    made.decoded(1, 0.05)
    n_verified = 0
    for step in range(900):
        if n_verified:
            made.drew(asked, draft().head(n_verified), range(int(step % 10 == 0)))
        made.decoded(1 + n_verified, flat(1 + n_verified)) if step else None
        n_verified = made.asked([ask()], 0, 0.0)[0]
        if n_verified:
            made.drafted([1] * (1 + n_verified), 0.0015 * (1 + n_verified))
        counts.append(n_verified)
    assert all(counts[:4]), "it seems to pay"
    assert sum(map(bool, counts[300:])) < 60, "it does not"


def test_a_draft_that_is_right_is_asked_for_in_nearly_every_step() -> None:
    made = drafting(5e-4)
    for _ in range(400):
        made.drew(Asked(0), draft(), range(K))
    counts = [made.asked([ask()], 0, 0.0)[0] for _ in range(1000)]
    assert counts.count(K) >= 985 and 0 in counts


def test_of_several_drafters_the_best_is_taken() -> None:
    """By what each has shown, of all requests and of this one; first the surer match."""
    made, asked = Controller(), Asked(1)
    model, short = Draft((1, 2, 3), evidence=4), Draft((4, 5, 6, 7), evidence=4, drafter=1)
    long = Draft((8, 9), evidence=40, drafter=1)
    assert made.best(asked, [model, short]) is short
    weak = Draft((8, 9), evidence=1, drafter=1)
    assert made.best(asked, [model, long]) is long
    assert made.best(asked, [model, weak]) is model
    assert made.best(asked, [Draft(n_asked=4, evidence=4), long]) is long
    assert made.best(asked, [Draft(n_asked=4, evidence=4), Draft(drafter=1)]).n_asked == 4
    for _ in range(20):
        made.drew(asked, short, ())
    assert made.best(asked, [model, short]) is model, "another drafter's misses"
    for _ in range(60):
        made.drew(Asked(2), model, ())
    assert made.best(Asked(3), [model, weak]) is weak


def test_who_has_to_be_asked_first_is_asked_where_that_pays() -> None:
    """Another that has something in each step, all of it wrong, leaves it a turn."""
    for pass_seconds, pays in ((5e-4, True), (1.0, False)):
        made, request = drafting(pass_seconds), Asked(0)
        model, other = Draft(n_asked=K, evidence=4), Draft((1, 2), evidence=4, drafter=1)
        assert made.best(request, [replace(model, n_asked=0), other]) is other, "it cannot be asked"
        for _ in range(9):
            made.drew(request, other, ())
        assert made.best(request, [model, other]) is model
        assert (made.asked([ask()], 0, 0.0)[0] > 0) == pays
        assert (made.best(request, [model, other]) is model) == pays
        made.ended(request)
        assert made.best(request, [model, Draft()]) is model


class _Says(Proposer):
    def __init__(self, *tokens: int) -> None:
        self.tokens, self.n_ended = tokens, 0

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [Draft(self.tokens[:k], evidence=4) for _ in requests]

    def ended(self, known: Known) -> None:
        self.n_ended += 1


def test_each_of_several_has_its_own_maximum() -> None:
    first, second = _Says(1, 2, 3), _Says(*range(9))
    both = SeveralDrafters(DrafterPart(first, 2), DrafterPart(second, 5))
    found = both.propose_each([Asked(1), Asked(2)], 16)
    assert found == [[Draft((1, 2), evidence=4), Draft((0, 1, 2, 3, 4), evidence=4, drafter=1)]] * 2
    assert [len(x.tokens) for x in both.propose([Asked(1)], 3)] == [3]
    both.ended(Asked(1))
    assert first.n_ended == second.n_ended == 1


def test_of_several_each_draft_says_what_the_prediction_has_of_it() -> None:
    class Predicted(_Says):
        def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
            return [Draft(self.tokens, evidence=4, n_predicted=2) for _ in requests]

    both = SeveralDrafters(DrafterPart(_Says(1), 4), DrafterPart(Predicted(1, 2, 3), 4))
    (found,) = both.propose_each([Asked(0)], 4)
    assert [(x.drafter, x.n_predicted) for x in found] == [(0, 0), (1, 2)]


@pytest.mark.parametrize(("is_head", "passes"), [(False, [4, 2, 2, 1]), (True, [4, 2, 1])])
def test_a_head_drafts_the_first_where_it_reads(is_head: bool, passes: list[int]) -> None:
    rows = (Row(0, 5, (1,), n_drafts=3), Row(1, 5, (1,), n_drafts=2), Row(2, 0, (1, 2)))
    assert draft_passes(StepPlan(0, rows), is_head=is_head) == passes
    costs = PassCosts(0.1)
    for n in passes:
        costs.observe([n], 1.0)
    chains = Chains(costs, 1.0, 2, is_head=is_head)
    chains.add(0)
    assert (chains.seconds == 0) == is_head
