"""Which tokens of plans stand for tiles."""

from __future__ import annotations

from kvasir.core.plan import Row, SlotOpen, StepPlan
from kvasir.core.request import NO_DRAWS
from kvasir.core.tiles import Media, media_at
from kvasir.exec.media import MediaRun, MediaSlots

TILE = media_at(2, 3, b"\0")
"""At the end of a prompt of five tokens."""


def opening(*media: Media) -> SlotOpen:
    return SlotOpen(0, NO_DRAWS, tuple(range(5)), media=media)


def plan(row: Row, *opens: SlotOpen) -> StepPlan:
    return StepPlan(0, (Row(1, 7, (9,)), row), opens)


def test_the_last_token_may_be_computed_again_and_again() -> None:
    slots = MediaSlots()
    first = plan(Row(0, 0, tuple(range(5))), opening(TILE))
    assert slots.of(first) == [MediaRun(3, TILE, 0, 3)]
    again = plan(Row(0, 4, (4,)))
    assert slots.of(again) == slots.of(again) == [MediaRun(1, TILE, 2, 1)]
    assert slots.of(plan(Row(0, 5, (8,)))) == []


def test_a_slot_that_is_opened_again_forgets_its_tiles() -> None:
    """Whoever had it was cancelled between two chunks."""
    slots = MediaSlots()
    assert slots.of(plan(Row(0, 0, (0, 1, 2)), opening(TILE))) == [MediaRun(3, TILE, 0, 1)]
    assert slots.of(plan(Row(0, 0, tuple(range(5))), opening())) == []
