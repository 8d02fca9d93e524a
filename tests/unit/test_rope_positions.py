"""Where tokens stand in time, height and width: on the axes one by one, as the paper counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, SlotOpen
from kvasir.core.tiles import Media, media_at
from kvasir.exec.rope_positions import RopePositions, rope_positions
from tests.planned import step_plan

Grid = tuple[int, int]


def counted(parts: list[int | Grid]) -> list[tuple[int, int, int]]:
    """Of texts of so many tokens, and of images."""
    places: list[tuple[int, int, int]] = []
    at = 0
    for part in parts:
        if isinstance(part, int):
            places += [(at + i, at + i, at + i) for i in range(part)]
            at += part
            continue
        lines, columns = part
        places += [(at, at + y, at + x) for y in range(lines) for x in range(columns)]
        at += max(lines, columns)
    return places


def media_of(parts: list[int | Grid]) -> tuple[Media, ...]:
    found: list[Media] = []
    at = 0
    for part in parts:
        n = part if isinstance(part, int) else part[0] * part[1]
        if not isinstance(part, int):
            found.append(media_at(at, n, b"pixels", part[1]))
        at += n
    return tuple(found)


PARTS = st.lists(st.integers(1, 9) | st.tuples(st.integers(1, 7), st.integers(1, 7)), max_size=7)


@given(PARTS, st.data())
def test_any_part_of_a_sequence(parts: list[int | Grid], data: st.DataObject) -> None:
    expected, media = counted([*parts, 5]), media_of(parts)
    first = data.draw(st.integers(0, len(expected) - 1))
    found = rope_positions(np.arange(first, len(expected)), media)
    assert found.tolist() == [list(place) for place in expected[first:]]


def test_a_shape_is_a_part_of_the_name() -> None:
    images = [media_at(0, 6, b"x" * 1152, columns) for columns in (0, 1, 2, 3)]
    assert len({image.digest for image in images}) == 4


def test_they_follow_plans() -> None:
    """A slot keeps its images, without their pixels, until another request opens it; drafts of a
    tree stand where their depth says."""
    images = media_of([2, (3, 2)])
    opening = SlotOpen(4, TokenParams(seed=0, max_tokens=1), tuple(range(9)), media=images)
    positions = RopePositions()
    positions.open(step_plan(0, [], (opening,)))
    whole = Row(4, 0, tuple(range(9)))
    assert positions.of([whole]).tolist() == [list(x) for x in counted([2, (3, 2), 1])]
    tree = Row(4, 9, (1, 2, 3, 4), parents=(-1, 0, 0, 1))
    assert positions.of([tree])[:, 1].tolist() == [6, 7, 7, 8]
    assert positions.of([Row(0, 9, (1,)), tree])[0].tolist() == [9] * 3
    assert not any(x.pixels for x in positions._slots[4].media)
    other = SlotOpen(4, TokenParams(seed=0, max_tokens=1), (1, 2))
    positions.open(step_plan(1, [], (other,)))
    assert positions.of([Row(4, 0, tuple(range(4)))])[:, 0].tolist() == [0, 1, 2, 3]
    assert positions.of([]).shape == (0, 3)
