"""What a constraint forces is told at once and computed in one row, and changes no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pytest
from msgspec.structs import replace

from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.engine import looks, masking
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.grammar.constraint import schema_grammar
from kvasir.grammar.masks import GrammarMasks
from kvasir.grammar.python_binding import PythonLibrary, PythonStand
from kvasir.sampling.masks import Bits, Masks, only
from kvasir.sched.scheduler import Scheduler
from tests.automaton import Ring, keeps_to
from tests.byte_grammar import EOS, byte_tokens
from tests.sizes import config_of

VOCAB = 101
PARAMS = TokenParams(seed=3, max_tokens=24, constraint="6:5!")
ASKED = EngineRequest(1, tuple(range(20)), PARAMS)
LONG = EngineRequest(9, (1, 2, 3), TokenParams(seed=5, max_tokens=120))
Way = Literal["plain", "overlapped", "beside another"]
ways = pytest.mark.parametrize("way", get_args(Way))
"""The overlapped loop waits for what is forced when a request is alone."""


@dataclass(frozen=True)
class Ran:
    calls: tuple[tuple[TokenEvent, ...], ...]
    """What each call of the engine's step told."""
    plans: tuple[StepPlan, ...]
    n_forced: int
    n_forced_told: int
    """In the timeline."""

    @property
    def events(self) -> tuple[TokenEvent, ...]:
        return tuple(event for call in self.calls for event in call)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for event in self.events for token in event.tokens)

    @property
    def n_logits(self) -> int:
        return sum(plan.n_logits for plan in self.plans)


def ran(
    request: EngineRequest,
    *,
    jump_ahead: bool = True,
    way: Way = "plain",
    budget: int = 32,
    masks: Callable[[], Masks] = lambda: Ring(VOCAB),
    vocab_size: int = VOCAB,
) -> Ran:
    config = config_of(128, 4, budget, 40, 16, vocab_size=vocab_size)
    executor, scheduler = FakeExecutor(config.sizes), Scheduler(config)
    plans: list[StepPlan] = []
    run = executor.run

    def noted(plan: StepPlan) -> StepResult:
        plans.append(plan)
        return run(plan)

    executor.run = noted
    made = Engine(executor, scheduler, overlap=way != "plain", masks=masks(), jump_ahead=jump_ahead)
    made.submit([request] if way != "beside another" else [request, LONG])
    calls: list[tuple[TokenEvent, ...]] = []
    while not (calls and any(event.finish for event in calls[-1])):
        calls.append(tuple(event for event in made.step().events if event.id == request.id))
        made.check()
    story = made.timeline.story(request.id)
    assert story is not None
    told = sum(span.forced for span in story.spans)
    made.close()
    return Ran(tuple(calls), tuple(plans), made.stats().n_forced, told)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mask is late: steps are counted here."""
    monkeypatch.setattr(masking, "LATE_SECONDS", 30.0)


def with_params(**changes: object) -> EngineRequest:
    return replace(ASKED, params=replace(PARAMS, **changes))


@ways
def test_forced_tokens_have_no_steps_and_no_logits_of_their_own(way: Way) -> None:
    off = ran(ASKED, jump_ahead=False, way=way)
    on = ran(ASKED, way=way)
    assert keeps_to("6:5!", off.tokens) and len(off.tokens) == 24
    assert on.tokens == off.tokens
    assert (on.events[-1].finish, on.events[-1].stop_id) == ("length", None)
    assert off.n_forced == 0 and on.n_forced > 4
    assert len(on.plans) <= len(off.plans) - on.n_forced
    assert on.n_logits <= off.n_logits - on.n_forced
    assert all(row.n_logits <= 1 for plan in on.plans for row in plan.rows)


def test_who_is_alone_is_told_what_is_forced_with_the_token_before_it() -> None:
    """Before the step that computes it."""
    together = [call for call in ran(ASKED, way="overlapped").calls if len(call) > 1]
    assert len(together) > 1
    assert all(len(drawn.tokens) == 1 and forced.tokens for drawn, forced in together)


@ways
def test_logprobs_of_forced_tokens_are_drawn_in_one_row(way: Way) -> None:
    asked = with_params(n_logprobs=2)
    off = ran(asked, jump_ahead=False, way=way)
    on = ran(asked, way=way)
    assert on.tokens == off.tokens
    logprobs = [[x for event in each.events for x in event.logprobs] for each in (on, off)]
    assert logprobs[0] == logprobs[1] and len(logprobs[0]) == 24
    assert on.n_forced > 4 and len(on.plans) < len(off.plans) - 4
    assert max(row.n_logits for plan in on.plans for row in plan.rows) > 2


@ways
def test_a_small_budget_cuts_what_is_forced_in_chunks(way: Way) -> None:
    off = ran(ASKED, jump_ahead=False, way=way, budget=2)
    on = ran(ASKED, way=way, budget=2)
    assert on.tokens == off.tokens
    assert any(not row.n_logits and row.start >= 20 for plan in on.plans for row in plan.rows)


@ways
def test_the_timeline_tells_what_was_forced(way: Way) -> None:
    """All but what was told with the end."""
    found = ran(ASKED, way=way)
    assert 0 < found.n_forced_told <= found.n_forced


@ways
def test_wrong_tokens_are_noticed(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    off = ran(ASKED, jump_ahead=False, way=way)
    monkeypatch.setattr(looks, "only", lambda bits: only(bits) + (only(bits) >= 0))
    on = ran(ASKED, way=way)
    assert on.tokens != off.tokens
    assert on.events[-1].error_code == "constraint_failed"


@ways
def test_a_forced_end_ends(way: Way) -> None:
    """The token that leads from place 2 to place 1."""
    asked = with_params(stop_ids=(17,), max_tokens=100)
    off = ran(asked, jump_ahead=False, way=way)
    on = ran(asked, way=way)
    assert on.tokens == off.tokens and on.tokens[-1] == 17
    assert (on.events[-1].finish, on.events[-1].stop_id) == ("stop", 17)


@ways
def test_an_end_that_comes_too_early_is_not_forced(way: Way) -> None:
    asked = with_params(stop_ids=(17,), max_tokens=100, min_tokens=90)
    off = ran(asked, jump_ahead=False, way=way)
    on = ran(asked, way=way)
    assert on.tokens == off.tokens and on.tokens[-1:] != (17,)
    ends = [(x.events[-1].finish, x.events[-1].stop_id) for x in (on, off)]
    assert ends == [("stop", None), ("stop", None)]


@ways
def test_what_may_be_banned_is_drawn(way: Way) -> None:
    asked = with_params(bad_words=((17,),))
    off = ran(asked, jump_ahead=False, way=way)
    on = ran(asked, way=way)
    assert on.events[-1].error_code == off.events[-1].error_code == "no_token_left"
    assert on.tokens == off.tokens and on.n_forced == 0


def test_one_token_of_a_mask() -> None:
    bits = Ring(70)
    bits.open(0, "70:1", ())
    found = mask_of(bits)
    assert only(found) == 0
    found[2] |= 1
    assert only(found) == -1
    assert only(found * 0) == -1
    found[:] = 0
    found[1] = 1 << 31
    assert only(found) == 63
    found[1] |= 2
    assert only(found) == -1


def mask_of(masks: Masks) -> Bits:
    found = np.zeros(3, np.uint32)
    masks.fill(0, (), found)
    return found


def compiled(text: str) -> Masks:
    """Its request waits for nothing."""
    masks = GrammarMasks(byte_tokens)
    masks.check(text)
    return masks


@ways
@pytest.mark.parametrize("n_logprobs", [-1, 0])
def test_keys_of_a_schema_are_forced(way: Way, n_logprobs: int) -> None:
    """The library's own list of what is forced says the same."""
    answer = {"enum": ["a", "b"]}
    schema = {
        "type": "object",
        "properties": {"first_name": answer, "second_name": answer},
        "required": ["first_name", "second_name"],
        "additionalProperties": False,
    }
    text = schema_grammar(schema, spaces=None).text
    params = replace(PARAMS, constraint=text, stop_ids=(EOS,), max_tokens=90, n_logprobs=n_logprobs)
    asked = replace(ASKED, params=params)
    both = [
        ran(
            asked,
            jump_ahead=jump_ahead,
            way=way,
            masks=lambda: compiled(text),
            vocab_size=EOS + 1,
        )
        for jump_ahead in (True, False)
    ]
    on, off = both
    assert on.tokens == off.tokens and on.tokens[-1] == EOS
    written = bytes(on.tokens[:-1])
    assert written.startswith(b'{"first_name":"') and written.endswith(b'"}')
    assert len(off.plans) >= len(on.tokens)
    assert len(on.plans) <= (10 if way == "beside another" else 5)
    stand = byte_tokens(PythonLibrary).compile(text)._stand
    assert isinstance(stand, PythonStand)
    stand.consume(on.tokens[:1])
    assert bytes(stand._made.compute_ff_tokens()) == b'"first_name":"'
