"""A mask that is late holds nobody up, and its row draws what it would have drawn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace as with_fields

from kvasir.core.messages import TokenEvent
from kvasir.engine import masking
from kvasir.engine.engine import Engine
from kvasir.engine.looks import Crew, Look, needs_help
from kvasir.exec.fake import FakeExecutor
from kvasir.sampling.masks import Bits
from kvasir.sched.scheduler import Scheduler
from tests.automaton import LATE, Ring
from tests.exactness import CACHE_VARIANTS, VARIANTS, Sizes, Variant, baseline, run
from tests.request_sets import make_requests
from tests.sizes import config_of
from tests.unit.test_masks import VOCAB, Watched, answers, engine, overlaps, request, tokens


class Gated(Watched):
    """One mask of the first request does not come before the gate is opened."""

    def __init__(self, n_before: int) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.n_before = n_before

    def fill(self, slot: int, path: Sequence[int], bits: Bits) -> None:
        if slot == 0:
            self.n_before -= 1
            if self.n_before < 0:
                assert self.gate.wait(30)
        super().fill(slot, path, bits)


@overlaps
@pytest.mark.parametrize("n_before", [0, 1, 6])
@pytest.mark.parametrize("constraint", ["7:3", "6:5!"])
def test_others_go_on_without_a_late_mask(
    overlap: bool, n_before: int, constraint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "MAX_SECONDS", 60.0)
    masks = Gated(n_before)
    asked = [request(1, constraint), request(2, constraint), request(3, "")]
    made = engine(masks, overlap=overlap)
    made.submit(asked)
    found = {one.id: [] for one in asked}
    while not all(found[i] and found[i][-1].finish for i in (2, 3)):
        for event in made.step().events:
            found[event.id].append(event)
    assert len(tokens(found[1])) < 20
    masks.gate.set()
    for i, events in answers(made).items():
        found[i] += events
    for one in asked:
        alone = answers(engine(Ring(VOCAB)), one)[one.id]
        assert tokens(found[one.id]) == tokens(alone)
        assert found[one.id][-1].finish == "length"
    made.close()
    assert masks.n_open == 0


@pytest.mark.parametrize(
    ("n_before", "n_done", "share", "helps"),
    [
        (0, 0, 0.01, True),  # the first holds it up
        (30, 30, 0.1, True),
        (0, 2, 0.01, False),
        (0, 2, 0.02, True),  # 64 take two thirds of the time
        (30, 33, 0.25, False),
    ],
)
def test_another_thread_helps_where_one_does_not_do(
    n_before: int, n_done: int, share: float, helps: bool
) -> None:
    assert needs_help(64, n_before, n_done, share) is helps


def test_what_is_left_is_not_held_up_by_who_was_first() -> None:
    """However early nobody waits any more: no later look would help."""
    gate, crew = threading.Event(), Crew()
    ran = [threading.Event() for _ in range(3)]
    calls: list[Callable[[], object]] = [lambda: gate.wait(30), *(x.set for x in ran)]
    crew.do([cast(Look, SimpleNamespace(run=call)) for call in calls], 0.0)
    assert all(x.wait(10) for x in ran)
    gate.set()
    crew.close()


@overlaps
def test_who_waits_for_a_mask_can_be_cancelled(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot goes to another, and the mask, when it comes, to nobody."""
    monkeypatch.setattr(masking, "MAX_SECONDS", 60.0)
    masks = Gated(2)
    config = config_of(128, 1, 32, 40, 16, vocab_size=VOCAB)
    made = Engine(FakeExecutor(config.sizes), Scheduler(config), overlap=overlap, masks=masks)
    made.submit([request(1), request(2)])
    for _ in range(8):
        made.step()
    made.cancel(1)
    found = answers(made)
    assert found[1][-1].finish == "cancelled"
    assert tokens(found[2]) == tokens(answers(engine(Ring(VOCAB)), request(2))[2])
    assert masks.n_open == 1
    masks.gate.set()
    made.close()
    assert masks.n_open == 0


@overlaps
def test_a_mask_that_takes_too_long_ends_its_request_meanwhile(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "MAX_SECONDS", 0.5)
    masks = Gated(2)
    made = engine(masks, overlap=overlap)
    began = time.monotonic()
    found = answers(made, request(1), request(2))
    assert time.monotonic() - began < 20
    assert found[1][-1].error_code == "constraint_failed"
    assert "a mask takes more than 0.5 s" in str(found[1][-1].error)
    assert found[2][-1].finish == "length"
    masks.gate.set()
    made.close()


SIZES = Sizes(vocab_size=97)
REQUESTS = [
    with_fields(one, params=with_fields(one.params, constraint=("7:3", "6:5!")[one.id % 2]))
    for one in make_requests(16, SIZES.vocab_size, seed=6, max_tokens=12)
]
CHOSEN = (
    "pairs",
    "chunks of 7",
    "preempted",
    "overlapped",
    "overlapped, preempted",
    "chain drafts",
    "tree drafts",
    "tree drafts, overlapped, preempted",
    "replayed after 40 tokens",
    "reset again and again",
)
LATE_VARIANTS = [x for x in (*VARIANTS, *CACHE_VARIANTS) if x.name in CHOSEN]


@pytest.mark.parametrize("variant", LATE_VARIANTS, ids=lambda x: f"{x.name}, cache {x.cache}")
def test_late_masks_change_no_answer(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "LATE_SECONDS", LATE / 10)
    monkeypatch.setattr(masking, "MAX_SECONDS", 60.0)
    late = 0
    do = Crew.do

    def counted(self: Crew, looks: Sequence[Look], seconds: float) -> None:
        nonlocal late
        do(self, looks, seconds)
        late += sum(not look.is_done for look in looks)

    monkeypatch.setattr(Crew, "do", counted)
    expected = baseline(FakeExecutor, REQUESTS, SIZES).answers
    late = 0
    changed = replace(variant, late_masks=True)
    assert run(FakeExecutor, REQUESTS, SIZES, changed, expected).answers == expected
    assert late > 2


@overlaps
@pytest.mark.parametrize("drafts", [False, True], ids=["no drafts", "drafts"])
def test_who_is_late_every_time_goes_on(
    overlap: bool, drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine where no thread ever gets its turn in time: each mask is there when its step has
    ended, and the next step takes it."""
    monkeypatch.setattr(masking, "MAX_SECONDS", 60.0)
    asked = [request(1), request(2, "6:5!")]
    alone = answers(engine(Ring(VOCAB)), *asked)
    late: list[Look] = []
    monkeypatch.setattr(Crew, "do", lambda self, looks, seconds: late.extend(looks))
    guessed = {i: tokens(events) for i, events in alone.items()}
    made = engine(Ring(VOCAB), overlap=overlap, drafts=guessed if drafts else None)
    made.submit(asked)
    found: dict[int, list[TokenEvent]] = {one.id: [] for one in asked}
    for _ in range(400):
        for event in made.step().events:
            found[event.id].append(event)
        for look in late:
            look.run()
        late.clear()
        if not made.has_work:
            break
    assert {i: tokens(events) for i, events in found.items()} == guessed
    made.close()
