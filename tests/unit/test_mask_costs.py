"""What masks may cost the requests beside theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from kvasir.core.messages import TokenEvent
from kvasir.core.request import EngineRequest
from kvasir.engine import masking
from kvasir.engine.looks import PATIENCE
from kvasir.sampling.masks import Bits
from tests.automaton import Ring
from tests.unit.test_masks import PARAMS, VOCAB, Watched, answers, engine, overlaps, request, tokens

MAX_SECONDS = 0.1
"""Of the processor, of one mask."""
SLOW = 2 * PATIENCE * MAX_SECONDS
"""More than a busy machine takes for one that costs nothing."""


class Slow(Watched):
    """Takes its time for the first request."""

    def fill(self, slot: int, path: Sequence[int], bits: Bits) -> None:
        if slot == 0:
            time.sleep(SLOW)
        super().fill(slot, path, bits)


class SlowToOpen(Watched):
    def open(self, slot: int, constraint: str, outputs: Sequence[int]) -> None:
        time.sleep(SLOW)
        super().open(slot, constraint, outputs)


@overlaps
def test_who_opens_slowly_is_answered(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first grammar of all waits for the vocabulary."""
    monkeypatch.setattr(masking, "MAX_SECONDS", MAX_SECONDS)
    found = answers(engine(SlowToOpen(), overlap=overlap), request(1))
    assert tokens(found[1]) == tokens(answers(engine(Ring(VOCAB)), request(1))[1])


@overlaps
def test_a_request_whose_masks_take_long_ends_alone(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "MAX_SECONDS", MAX_SECONDS)
    asked = [request(1), request(2)]
    found = answers(engine(Slow(), overlap=overlap), *asked)
    assert found[1][-1].error_code == "constraint_failed"
    assert "a mask takes more than 0.1 s" in str(found[1][-1].error)
    assert tokens(found[2]) == tokens(answers(engine(Ring(VOCAB)), request(2))[2])


class Starved(Watched):
    """Others have the processor while it makes the first mask."""

    def fill(self, slot: int, path: Sequence[int], bits: Bits) -> None:
        if not self.asked:
            time.sleep(2 * MAX_SECONDS)
        super().fill(slot, path, bits)


@overlaps
def test_who_waits_for_the_processor_is_answered(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "MAX_SECONDS", MAX_SECONDS)
    found = answers(engine(Starved(), overlap=overlap), request(1))
    assert tokens(found[1]) == tokens(answers(engine(Ring(VOCAB)), request(1))[1])


class Burning(Watched):
    """Takes too much of the processor for the first request."""

    def fill(self, slot: int, path: Sequence[int], bits: Bits) -> None:
        end = time.thread_time() + (0.02 if slot == 0 else 0.0)
        while time.thread_time() < end:
            pass
        super().fill(slot, path, bits)


@overlaps
def test_a_request_whose_masks_take_long_together_ends_alone(overlap: bool) -> None:
    asked = [request(1), request(2, "7:4")]
    found = answers(engine(Burning(), overlap=overlap), *asked)
    assert found[1][-1].error_code == "constraint_failed"
    assert "its masks take too long" in str(found[1][-1].error)
    assert 5 < len(found[1]) < 20
    assert tokens(found[2]) == tokens(answers(engine(Ring(VOCAB)), request(2, "7:4"))[2])


class Unprepared(Watched):
    is_ready = False

    def prepare(self, constraint: str) -> Callable[[], bool]:
        return lambda: self.is_ready


@overlaps
def test_no_step_waits_for_a_constraint_that_is_made(overlap: bool) -> None:
    masks = Unprepared()
    made = engine(masks, overlap=overlap)
    free = EngineRequest(2, tuple(range(2, 22)), replace(PARAMS, seed=2, constraint=""))
    made.submit([request(1), request(3), free])
    told: list[TokenEvent] = []
    while not any(event.finish for event in told):
        told.extend(made.step().events)
    assert {event.id for event in told} == {2}
    assert made.has_work and not made.step().events
    assert made.cancel(3)
    masks.is_ready = True
    found = answers(made)
    assert tokens(found[1]) == tokens(answers(engine(Ring(VOCAB)), request(1))[1])
    assert found[3][-1].finish == "cancelled"
    assert made.stats().n_received == 3
    story = made.timeline.story(1)
    assert story is not None
    compiled, queued = story.spans[:2]
    assert (compiled.kind, queued.kind) == ("compiled", "queued")
    assert compiled.at == -compiled.seconds < 0
    others = made.timeline.story(2)
    assert others is not None and others.spans[0].kind == "queued"
