"""When a head rests, and whom it cannot draft for afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.core.plan import Copy, Row, Transfer
from kvasir.kv.holders import Vouched
from kvasir.sched.gaps import IDLE_STEPS, HeadGaps

SIZE = 4


class _Table:
    def __init__(self, blocks: list[int]) -> None:
        self.blocks = blocks

    def at(self, i: int) -> tuple[int, ...]:
        return (self.blocks[i],)

    def held(self, group: int) -> list[int]:
        return self.blocks


class Asking:
    """Of a request what is looked at."""

    def __init__(self, *blocks: int, n_computed: int = 0, n_prompt: int = 0) -> None:
        self.n_prompt, self.vouched = n_prompt, Vouched()
        self.table, self.n_computed, self.n_preempted, self.slot = (
            _Table([*blocks]),
            n_computed,
            1,
            0,
        )

    def row(self, n: int = 1, **more: Any) -> Row:
        start = self.n_computed
        self.n_computed += n
        return Row(self.slot, start, (7,) * n, **more)


def made(*, rests: bool) -> HeadGaps:
    gaps = HeadGaps(SIZE)
    if rests:
        rest(gaps, Asking(90))
    return gaps


def rest(gaps: HeadGaps, request: Any) -> None:
    """One step of ``request`` in which it rests."""
    other = Asking(99)
    while gaps.take([other], [Row(3, 0, (7,))], (), ()) is None:
        pass
    assert gaps.take([request], [request.row()], (), ()) == ()


def test_it_rests_when_nothing_was_asked_for_a_while() -> None:
    gaps, request = made(rests=False), Asking(0, 1, n_computed=2)
    one: Any = request
    for _ in range(3):
        for _ in range(IDLE_STEPS):
            assert gaps.take([one], [Row(0, 2, (7,))], (), ()) is None
        assert gaps.take([one], [Row(0, 2, (7,), n_drafts=2)], (), ()) is None, "it was asked"
        assert gaps.has_all(one)
    for _ in range(IDLE_STEPS):
        assert gaps.take([one], [Row(0, 2, (7,))], (), ()) is None
    assert gaps.take([one], [Row(0, 2, (7,))], (), ()) == ()
    assert not gaps.has_all(one)
    drafts = Row(0, 2, (7, 8), n_logits=2)
    assert gaps.take([one], [drafts], (), ()) == (), "drafts of others are no prompt"
    fresh: Any = Asking(5, 6)
    assert gaps.take([fresh], [fresh.row(5)], (), ()) is None, "a new prompt"
    assert gaps.has_all(fresh) and not gaps.has_all(one)


def test_a_prompt_of_which_one_token_is_left_is_read() -> None:
    """Behind a hit of the cache, say: who missed that one would be drafted for no more."""
    gaps = made(rests=True)
    one: Any = Asking(0, 1, n_computed=6, n_prompt=7)
    assert gaps.take([one], [one.row()], (), ()) is None
    assert gaps.has_all(one)
    assert gaps.take([one], [one.row()], (), ()) == (), "its first output is no prompt"
    assert not gaps.has_all(one)


def test_what_runs_anew_has_all_again() -> None:
    gaps = made(rests=True)
    one: Any = Asking(0, 1, n_computed=2)
    rest(gaps, one)
    one.n_preempted, one.n_computed = 2, 0
    assert gaps.take([one], [one.row(5)], (), ()) is None
    assert gaps.has_all(one), "its blocks were begun again"
    gaps.ended(one)


def test_who_shares_a_block_with_a_gap_lacks_it_too() -> None:
    gaps = made(rests=True)
    one: Any = Asking(0, 1, n_computed=5)
    rest(gaps, one)
    sharing: Any = Asking(0, 1, 2, n_computed=8)
    before: Any = Asking(0, 3, n_computed=4)
    assert not gaps.has_all(sharing) and gaps.has_all(before)
    later: Any = Asking(0, 4, n_computed=4)
    assert gaps.has_all(later)
    later.table.blocks[0], later.vouched.node = 1, object()
    assert not gaps.has_all(later), "an equal block has taken the place of its own"


def test_copies_have_the_gaps_of_what_they_copy() -> None:
    gaps = made(rests=True)
    one: Any = Asking(0, n_computed=1)
    rest(gaps, one)
    other: Any = Asking(6, n_computed=0)
    copies = (Copy((0,), (5,), 2), Copy((6,), (7,), 2))
    assert gaps.take([other], [other.row(3)], copies, ()) is None
    copied: Any = Asking(5, n_computed=2)
    sound: Any = Asking(7, n_computed=2)
    assert not gaps.has_all(copied) and gaps.has_all(sound)


@pytest.mark.parametrize("group", [0, 1])
def test_what_comes_back_from_disk_may_lack_some(group: int) -> None:
    gaps, loads = made(rests=True), (Transfer(b"name", group, 3),)
    other: Any = Asking(6)
    assert gaps.take([other], [other.row(3)], (), loads) is None
    loaded: Any = Asking(3, n_computed=4)
    assert gaps.has_all(loaded) == (group == 1)
