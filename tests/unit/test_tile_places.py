"""Which tiles a chunk of a prompt has tokens of, and where it may end."""

from __future__ import annotations

import pytest

from kvasir.core.tiles import media_at
from kvasir.sched.tiles import NO_TILES, TilePlaces

FIRST, SECOND = media_at(4, 4, b"a"), media_at(10, 2, b"b")
BOTH = (FIRST, SECOND)


@pytest.mark.parametrize(
    ("start", "end", "seen"),
    [
        (0, 4, ()),
        (0, 5, (FIRST,)),
        (7, 8, (FIRST,)),
        (8, 10, ()),
        (7, 11, BOTH),
        (11, 12, (SECOND,)),
        (12, 13, ()),
    ],
)
def test_a_row_has_tokens_of_the_tiles_that_it_meets(
    start: int, end: int, seen: tuple[object, ...]
) -> None:
    assert tuple(TilePlaces(BOTH).seen(start, end)) == seen
    assert tuple(NO_TILES.seen(start, end)) == ()


def test_tokens_that_see_each_other_are_computed_together() -> None:
    spans, plain = TilePlaces(BOTH, are_spans=True), TilePlaces(BOTH)
    places = (0, 4, 6, 8, 10, 12)
    assert [spans.n_together(start) for start in places] == [1, 4, 2, 1, 2, 1]
    assert {plain.n_together(start) for start in places} == {1}
    assert [spans.whole(0, n) for n in (4, 5, 8, 9, 11, 12)] == [4, 4, 8, 9, 10, 12]
    assert spans.whole(4, 3) == 0 and plain.whole(0, 5) == 5
