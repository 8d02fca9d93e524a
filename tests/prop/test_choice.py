"""Stop strings and ``min_tokens``, however many tokens an event brings.

The rule is vLLM's: after each token beyond ``min_tokens``, the text so far is searched for a stop
that ends in what the token added, wherever it begins.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.core.messages import TokenEvent
from kvasir.text.choice import Choice
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.sampling import SamplingParams
from tests.tiny_vocab import byte_level

TOKENIZER = Tokenizer(spec_from_gguf(byte_level()))
BYTES = {TOKENIZER.token_bytes(i): i for i in range(TOKENIZER.vocab_size)}
TEXTS = st.text(alphabet="abé", min_size=3, max_size=12)
Told = tuple[str, str | None, int]


def told(text: str, params: SamplingParams, cuts: list[int]) -> Told:
    """Text, stop and number of tokens of a choice that is told one token for each byte of ``text``,
    as many at a time as ``cuts`` say."""
    tokens = [BYTES[bytes([byte])] for byte in text.encode()]
    choice, texts, n_tokens, at = Choice(0, TOKENIZER, params), "", 0, 0
    for cut in [*cuts, len(tokens)]:
        part = tuple(tokens[at : at + cut])
        at += len(part)
        finish = "length" if at == len(tokens) else None
        delta = choice.feed(TokenEvent(id=0, tokens=part, finish=finish))
        texts, n_tokens = texts + delta.text, n_tokens + delta.n_tokens
        if delta.finish is not None:
            assert delta.finish == ("stop" if isinstance(delta.stop_reason, str) else "length")
            return texts, delta.stop_reason, n_tokens
    raise AssertionError("it never ended")


def searched(text: str, stops: list[str], min_tokens: int, include: bool) -> Told:
    data = text.encode()
    for n in range(min_tokens + 1, len(data) + 1):
        before, now = (data[:k].decode("utf-8", "ignore") for k in (n - 1, n))
        ends = [
            (at + len(stop), -len(stop), stop)
            for stop in stops
            for at in range(len(now))
            if now.startswith(stop, at) and at + len(stop) > len(before)
        ]
        if ends:
            end, length, stop = min(ends)
            return now[: end if include else end + length], stop, n
    return text, None, len(data)


@settings(max_examples=400)
@given(
    text=TEXTS,
    stops=st.lists(st.text(alphabet="abé", min_size=2, max_size=4), min_size=1, max_size=2),
    min_tokens=st.integers(0, 8),
    include=st.booleans(),
    cuts=st.lists(st.integers(1, 5), max_size=8),
)
def test_stops_are_those_that_a_search_finds(
    text: str, stops: list[str], min_tokens: int, include: bool, cuts: list[int]
) -> None:
    params = SamplingParams(
        stop=stops,
        min_tokens=min_tokens,
        max_tokens=200,
        include_stop_str_in_output=include,
    )
    expected = searched(text, stops, min_tokens, include)
    assert told(text, params, cuts) == told(text, params, [1] * 200) == expected


@pytest.mark.parametrize(
    ("min_tokens", "expected"),
    [
        (0, ("1", " 9 ", 4)),
        (2, ("1", " 9 ", 4)),
        (3, ("1", " 9 ", 4)),
        (4, ("1 9 2", " 9 ", 8)),
        (7, ("1 9 2", " 9 ", 8)),
        (8, ("1 9 2 9 ", None, 8)),
    ],
)
def test_a_stop_may_begin_before_min_tokens(min_tokens: int, expected: Told) -> None:
    params = SamplingParams(stop=" 9 ", min_tokens=min_tokens, max_tokens=50)
    for cuts in ([1] * 8, [8], [3, 1], [2, 5]):
        assert told("1 9 2 9 ", params, cuts) == expected


def test_what_a_stop_overlaps_with_itself_counts_again() -> None:
    """The first one is complete too early; the second shares its last character."""
    params = SamplingParams(stop="aba", min_tokens=3, max_tokens=50)
    assert told("ababa", params, [5]) == ("ab", "aba", 5)
