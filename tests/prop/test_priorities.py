"""What a tenant says of its own requests changes nothing for others."""

from __future__ import annotations

from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from tests.sharing import Load, request, sizes

STREAM = 1000
PRIORITIES = st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=12)


def rows(priorities: list[int], n_blocks: int, before: int, lengths: tuple[int, int]) -> list[int]:
    """Tokens of a stream in each step, beside eight requests of another tenant, whose priorities
    these are in turn; the oldest of all is the stream unless it comes ``before`` steps later."""
    load = Load(sizes(n_slots=10, n_blocks=n_blocks, budget=64))
    order, n_sent, found = cycle(priorities), 0, list[int]()
    while STREAM not in load.ended:
        if before == len(found):
            load.add([request(STREAM, 16, 40, tenant="other")])
        while n_sent - sum(i < STREAM for i in load.ended) < 8:
            load.add([request(n_sent, *lengths, tenant="flood", priority=next(order))])
            n_sent += 1
        plan = load.step()
        assert plan is not None
        found.append(sum(len(row.tokens) for row in plan.rows if load.slots[row.slot] == STREAM))
        load.scheduler.check()
    return found


@given(
    PRIORITIES,
    st.integers(8, 40),
    st.integers(0, 30),
    st.tuples(st.integers(1, 60), st.integers(1, 40)),
)
def test_a_stream_gets_the_same_steps_whatever_the_priorities_of_others(
    priorities: list[int], n_blocks: int, before: int, lengths: tuple[int, int]
) -> None:
    assert rows(priorities, n_blocks, before, lengths) == rows([0], n_blocks, before, lengths)
