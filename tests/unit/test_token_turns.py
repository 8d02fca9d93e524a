"""Tokens of more choices than seats: told as they come, in one order whatever the steps."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kvasir.core.messages import TokenEvent
from kvasir.serve.token_turns import TokenTurns

N, SEATS = 11, 3
SIZES = [5, 1, 7, 3, 3, 9, 1, 1, 2, 6, 4]
CUT = {2: 4, 5: 2, 10: 3}
"""Choices that end at a text of theirs, at that token, and the engine learns it late."""


def events_of(choice: int) -> list[TokenEvent]:
    """A first one without tokens, as scores of a prompt are."""
    some = [TokenEvent(choice, tokens=(i,)) for i in range(SIZES[choice])]
    return [TokenEvent(choice, n_scores=1), *some, TokenEvent(choice, finish="length")]


def run(order: Sequence[int], known: Sequence[TokenEvent] = ()) -> list[list[TokenEvent]]:
    """What is told after each event of choices that come in ``order``."""
    turns, ended, told = TokenTurns(N, SEATS, known), set[int](), list(known)
    counts = [0] * N

    def tell(event: TokenEvent) -> bool:
        if event.id in ended:
            return False
        counts[event.id] += len(event.tokens)
        if event.finish is not None or counts[event.id] == CUT.get(event.id):
            ended.add(event.id)
        return True

    for event in known:
        tell(event)
    left = [events_of(choice) for choice in range(N)]
    for event in known:
        left[event.id].pop(0)
    steps = []
    for choice in order:
        if not left[choice]:
            continue
        turns.add(choice, left[choice].pop(0))
        new: list[TokenEvent] = []
        while due := turns.due(ended):
            new += [event for _, event in due if tell(event)]
        told += new
        steps.append(list(told))
    return steps


def shuffled(seed: int) -> list[int]:
    order = [choice for choice in range(N) for _ in range(SIZES[choice] + 2)]
    random.Random(seed).shuffle(order)
    return order


@pytest.mark.parametrize("seed", range(8))
def test_the_order_is_one_and_a_cut_anywhere_goes_on_with_it(seed: int) -> None:
    whole = run(shuffled(seed))[-1]
    assert whole == run(shuffled(seed + 100))[-1]
    for cut in range(len(whole) + 1):
        if rest := run(shuffled(cut), whole[:cut]):
            assert rest[-1] == whole, cut


def test_what_the_seats_say_is_told_while_others_have_not_begun() -> None:
    """Up to where the turn is that of who took the seat of one that has ended."""
    turns, ended, told = TokenTurns(N, SEATS, ()), set[int](), 0
    for i in range(100):
        for choice in range(SEATS):
            turns.add(choice, TokenEvent(choice, tokens=(i,)))
        told += len(turns.due(ended))
    assert told == 100 * SEATS
    ended.add(1)
    turns.add(0, TokenEvent(0, tokens=(100,)))
    turns.add(2, TokenEvent(2, tokens=(100,)))
    assert [choice for choice, _ in turns.due(ended)] == [0]
    turns.add(SEATS, TokenEvent(SEATS, tokens=(0,)))
    assert [choice for choice, _ in turns.due(ended)] == [SEATS, 2]


def test_without_a_bound_all_have_seats() -> None:
    turns = TokenTurns(3, 0, ())
    turns.add(0, TokenEvent(0, tokens=(1,)))
    assert len(turns.due(())) == 1
    turns.add(0, TokenEvent(0, tokens=(1,)))
    assert turns.due(()) == []
