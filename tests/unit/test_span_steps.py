"""Which steps compute tokens that see each other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.core.groups import KVGroup
from kvasir.core.tiles import media_at
from tests.unit.test_scheduler import request, scheduler, step


@pytest.mark.parametrize(
    ("places", "n", "budget", "scores", "expected"),
    [
        ((28, 40), 12, 32, -1, [28, 12, 12, 18]),
        ((0, 66), 12, 32, -1, [12, 32, 22, 12, 6]),
        ((10,), 30, 32, 20, [10, 30, 30]),
        ((10,), 300, 310, 20, [10, 300, 90]),
    ],
    ids=str,
)
def test_tokens_that_see_each_other_are_in_one_step(
    places: tuple[int, ...], n: int, budget: int, scores: int, expected: list[int]
) -> None:
    """A chunk ends before the first of them, or behind the last, though fewer scores are told in a
    step."""
    media = tuple(media_at(start, n, b"") for start in places)
    one = replace(request(1, sum(expected), max_tokens=1, n_prompt_logprobs=scores), media=media)
    sizes = {"max_num_batched_tokens": budget, "max_model_len": 512, "n_blocks": 40}
    made = scheduler(one, span_tokens=n, **sizes)
    assert [len(step(made)[0].rows[0].tokens) for _ in expected] == expected
    assert made.plan() is None


def test_tokens_that_see_each_other_wait_for_a_step_with_room() -> None:
    other = replace(request(1, 40, max_tokens=1), media=(media_at(5, 20, b""),))
    made = scheduler(request(0, 20), other, span_tokens=20)
    first, second = (step(made)[0] for _ in range(2))
    assert [len(row.tokens) for row in first.rows] == [20, 5]
    assert [len(row.tokens) for row in second.rows] == [1, 20]


def test_a_prompt_that_is_only_scored_does_not_end_with_an_image() -> None:
    """Its last token is not computed, and the others of the image see it."""
    scored = {"max_tokens": 0, "n_prompt_logprobs": 0}
    one = replace(request(1, 30, **scored), media=(media_at(18, 12, b""),))
    with pytest.raises(RequestError, match="ends with an image") as caught:
        scheduler(one, span_tokens=12)
    assert caught.value.param == "max_tokens"
    before = replace(one, prompt=(*one.prompt, 9))
    made = scheduler(before, span_tokens=12)
    assert [len(step(made)[0].rows[0].tokens) for _ in range(1)] == [30]
    apart = scheduler(one)
    assert len(step(apart)[0].rows[0].tokens) == 29


def test_tokens_that_see_each_other_get_the_blocks_of_who_is_behind() -> None:
    """Also where the first of them has room in a block of its own."""
    ahead = replace(request(0, 20, max_tokens=1), media=(media_at(10, 8, b""),))
    sizes = {"block_size": 4, "n_blocks": 40, "max_num_batched_tokens": 16}
    windows = (KVGroup(6, window=64, span=8),)
    made = scheduler(ahead, request(1, 6, max_tokens=10), span_tokens=8, windows=windows, **sizes)
    first, second = (step(made)[0] for _ in range(2))
    assert [len(row.tokens) for row in first.rows] == [10, 6]
    assert [len(row.tokens) for row in second.rows] == [8]
    assert made.stats().n_preemptions == 1
