"""What stood in texts before: found as a search through all of it finds it, bounded, and apart."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir import _native
from kvasir.core.request import Context
from kvasir.speculate.base import Draft
from kvasir.speculate.controller import Controller
from kvasir.speculate.lookup import MAX_READ, Lookup
from kvasir.speculate.recycling import Recycling
from kvasir.speculate.store import N_LEAD, AnswerStore
from kvasir.speculate.text import FIRST_SIZE, MAX_TRIED, Occurrence, PlainIndex, Text
from tests.forms import n_of

MINE, OTHERS = Context("mine"), Context("others")


@dataclass
class Asked:
    tokens: Sequence[int]
    n_prompt: int = 4
    id: int = 0
    context: Context = field(default=MINE)
    drafted: Sequence[int] = ()
    siblings: Sequence[Sequence[int]] = ()
    prediction: Sequence[int] = ()


def searched(tokens: Sequence[int], n_key: int, n_most: int) -> int:
    """The longest match of the end, of the newest places of its last ``n_key`` tokens."""
    key = tuple(tokens[len(tokens) - n_key :])
    places = [i for i in range(n_key, len(tokens)) if tuple(tokens[i - n_key : i]) == key]
    lengths = [0]
    for place in places[-MAX_TRIED:]:
        n = 0
        while n < min(n_most, place) and tokens[place - 1 - n] == tokens[len(tokens) - 1 - n]:
            n += 1
        lengths.append(n)
    return max(lengths)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=80),
    st.integers(1, 5),
    st.integers(5, 20),
    st.integers(1, 9),
)
def test_a_match_is_the_longest_of_the_newest_places(
    tokens: list[int], n_key: int, n_most: int, n_read: int
) -> None:
    text = Text(tokens, PlainIndex(n_key))
    while text.read(len(tokens), n_read):
        pass
    assert text.has_read(len(tokens))
    match = text.match(tokens, n_most)
    if len(tokens) < n_key:
        assert match == Occurrence()
        return
    assert match.length == searched(tokens, n_key, n_most)
    if match.length:
        assert match.end < len(tokens)
        n = match.length
        assert tokens[match.end - n : match.end] == tokens[len(tokens) - n :]


def test_a_text_that_is_read_in_parts_is_that_of_one_read() -> None:
    tokens = [(i * i) % 7 for i in range(3000)]
    whole, parts = (Text(tokens, PlainIndex(3)) for _ in range(2))
    assert whole.read(3000, 3000) == 2998
    assert [parts.read(3000, 512) for _ in range(7)] == [512, 512, 512, 512, 512, 438, 0]
    assert whole.match(tokens, 64) == parts.match(tokens, 64)


@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 64), st.booleans())
def test_the_native_index_is_the_plain_one(
    random: Random, n_key: int, n_most: int, is_array: bool
) -> None:
    """Over what a table grows by, of texts that grow, in lists and arrays."""
    plain, native = PlainIndex(n_key), _native.TextIndex(n_key)
    tokens: list[int] = []
    for _ in range(12):
        tokens += [random.randrange(-1, random.choice((2, 5, 50_000))) for _ in range(n_most)]
        tokens += tokens[: random.randrange(1, FIRST_SIZE // 4)]
        held = array("i", tokens) if is_array else tokens
        n = random.randrange(1, 400)
        assert native.read(held, len(tokens), n) == plain.read(tokens, len(tokens), n)
        assert native.has_read(len(tokens)) == plain.has_read(len(tokens))
        for tail in (held, tokens[: random.randrange(1, 80)], ()):
            assert native.match(held, tail, n_most) == plain.match(tokens, tail, n_most)
    assert native.bytes < 64 * max(FIRST_SIZE, len(tokens))


def test_what_is_no_text_is_refused_by_the_native_index() -> None:
    with pytest.raises(ValueError, match="1 to 5 tokens"):
        _native.TextIndex(6)
    index = _native.TextIndex(2)
    for tokens, end in (([1, 2], 3), ([1, 2], -1), ([1, 2**31], 2)):
        with pytest.raises(ValueError, match=r"read up to their end|32 bits"):
            index.read(tokens, end, 9)
    with pytest.raises(TypeError):
        index.read(array("q", [1, 2]), 2, 9)


def test_what_follows_a_period_is_the_period() -> None:
    text = Text([9, 1, 2, 3, 1, 2, 3], PlainIndex(3))
    assert text.read(7, 7) == 5
    match = text.match([1, 2, 3], 3)
    assert match == Occurrence(4, 3)
    assert text.following(match, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_draft_needs_its_shortest_match() -> None:
    lookup = Lookup(2, 5)
    assert lookup.propose([Asked([5, 6, 7, 8, 6])], 3) == [Draft()]
    assert lookup.propose([Asked([5, 6, 7, 8, 6, 7])], 3) == [Draft((8, 6, 7), evidence=2)]


def test_what_is_predicted_is_drafted() -> None:
    """After the request's own text, where both match as far; it does not begin again."""
    lookup = Lookup(2, 5)
    expected = [7, 8, 9, 10, 11, 12]
    asked = Asked([1, 2, 9, 10], prediction=expected)
    assert lookup.propose([asked], 3) == [Draft((11, 12), evidence=2, n_predicted=2)]
    assert not lookup.propose([Asked([1, 9, 8], id=1, prediction=expected)], 3)[0].tokens
    both = Asked([1, 9, 10, 11, 5, 9, 10], id=2, prediction=expected)
    assert lookup.propose([both], 3) == [Draft((11, 5, 9), evidence=2, n_predicted=1)]
    longer = Asked([1, 9, 10, 3, 8, 9, 10], id=3, prediction=expected)
    assert lookup.propose([longer], 1) == [Draft((11,), evidence=3, n_predicted=1)]
    assert Draft((1, 2, 3), n_predicted=2).head(1).n_predicted == 1


def test_a_long_prediction_is_read_in_several_steps() -> None:
    tokens = list(range(MAX_READ + 100))
    lookup, asked = Lookup(3, 8), Asked([5, 6, 7, 8], prediction=tokens)
    assert lookup.propose([asked], 2) == [Draft()]
    assert lookup.propose([asked], 2) == [Draft((9, 10), evidence=4, n_predicted=2)]


def test_what_is_predicted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.speculate.predictions.MAX_PREDICTED", 7)
    lookup = Lookup(2, 5)
    one, other = (Asked([1, 9, 10], id=i, prediction=[8 - i, 9, 10, 11]) for i in range(2))
    found = Draft((11,), evidence=2, n_predicted=1)
    assert lookup.propose([one, other], 3) == [found, Draft()]
    lookup.ended(one)
    assert lookup.propose([other], 3) == [found]


def test_choices_of_a_request_share_what_it_predicts() -> None:
    tokens = list(range(MAX_READ - 40))
    lookup = Lookup(3, 8)
    choices = [Asked([5, 6, 7, 8], id=i, prediction=tokens) for i in range(4)]
    assert lookup.propose(choices, 2) == [Draft((9, 10), evidence=4, n_predicted=2)] * 4
    assert lookup.n_tokens == len(tokens) + 4 * 4
    for n, choice in enumerate(choices):
        lookup.ended(choice)
        lookup.ended(choice)
        assert lookup.n_tokens == (len(tokens) if n < 3 else 0) + 4 * (3 - n)
    lookup.propose(choices[:1], 2)
    assert lookup.n_tokens == len(tokens) + 4, "the index of all was gone"


def test_a_long_prompt_is_read_in_several_steps() -> None:
    tokens = [i % 3000 for i in range(MAX_READ + 2000)]
    lookup = Lookup(3, 8)
    short = Asked([5, 6, 7, 8, 5, 6, 7], id=1)
    assert lookup.propose([Asked(tokens), short], 2) == [Draft(), Draft()]
    after = len(tokens) % 3000
    found = [Draft((after, after + 1), evidence=8), Draft((8, 5), evidence=3)]
    assert lookup.propose([Asked(tokens), short], 2) == found


def test_answers_of_another_context_are_not_there() -> None:
    lookup = Lookup(2, 8, n_stored=1000)
    answered = Asked([1, 2, 3, 4, 50, 51, 52, 53])
    lookup.ended(answered)
    again = Asked([1, 2, 3, 4], id=1)
    assert lookup.propose([again], 3) == [Draft((50, 51, 52), evidence=4)]
    assert lookup.propose([Asked([1, 2, 3, 4], id=2, context=OTHERS)], 3) == [Draft()]
    assert Lookup(2, 8).propose([again], 3) == [Draft()], "none are kept unless asked"


def test_answers_of_a_token_are_not_kept() -> None:
    store = AnswerStore(1000, partial(PlainIndex, 2))
    store.add(MINE, [1, 2, 3], 2, 99)
    assert not store.n_tokens
    store.add(MINE, [1, 2, 3, 4], 2, 99)
    assert store.n_tokens


def test_a_draft_ends_with_the_answer() -> None:
    store = AnswerStore(1000, partial(PlainIndex, 2))
    store.add(MINE, [1, 2, 3, 4], 1, 99)
    store.add(MINE, [7, 7, 7, 7], 1, 99)
    assert store.find(MINE, [2, 3], 8, 5).tokens == (4,)


def test_what_is_kept_is_bounded() -> None:
    store = AnswerStore(2000, partial(PlainIndex, 2))
    for i in range(50):
        store.add(MINE, range(100 * i, 100 * i + 90), 20, 99)
        store.add(Context(str(i)), range(30), 20, 99)
        assert store.n_tokens <= 2000
    assert store.find(MINE, [4901, 4902], 8, 2).tokens == (4903, 4904)
    assert not store.find(MINE, [1, 2], 8, 2).tokens, "the oldest went first"
    store.add(OTHERS, range(5000), 1000, 5000)
    assert store.n_tokens <= 2000
    assert store.find(OTHERS, [1000 - N_LEAD, 1001 - N_LEAD], 8, 1).tokens == (1002 - N_LEAD,)


def test_many_contexts_take_no_more_than_one() -> None:
    """Each has tables of its own, however short its answers are."""
    store = AnswerStore(100_000, partial(PlainIndex, 3))
    tracemalloc.start()
    for i in range(5000):
        store.add(Context(str(i)), (1, 2), 1, 99)
    n_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n_bytes < 20 * 100_000, "12 bytes a token, and the objects"


def test_no_step_reads_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where the table of a long text grows."""
    n_hashed = [0]

    def counted(tokens: Sequence[int], start: int, n: int) -> int:
        n_hashed[0] += 1
        return tokens[start]

    monkeypatch.setattr("kvasir.speculate.text._hash", counted)
    tokens = list(range(3000))
    read = Text(tokens, PlainIndex(3))
    for end in range(2000, 3000, 4):
        n_hashed[0] = 0
        read.read(end, 512)
        assert n_hashed[0] <= 512
    assert read.has_read(2996)


@pytest.mark.parametrize("n_stored", [0, 500])
def test_nothing_of_a_request_stays_but_what_is_stored(n_stored: int) -> None:
    lookup = Lookup(2, 8, n_stored)
    for i in range(100):
        asked = Asked(list(range(40)), id=i, prediction=range(30))
        lookup.propose([asked], 4)
        lookup.ended(asked)
    assert lookup.n_tokens <= n_stored


def test_many_requests_leave_no_more_than_some() -> None:
    """Each with a text of its own, of which an eighth are of other contexts."""
    made, tables, controller = Lookup(3, 64, n_stored=20_000), Recycling(5000), Controller()
    for i in range(n_of(3000, 100_000)):
        salt = str(i % 640) if i % 8 == 0 else "mine"
        tokens = [(i * 7919 + j * j) % 50_000 for j in range(24)]
        asked = Asked(tokens, id=i, context=Context(salt))
        (draft,) = made.propose([asked], 4)
        controller.drew(asked, draft if draft.evidence else Draft((1, 2), evidence=4), ())
        tables.saw(asked, tokens[-8:], (), [tokens[:8]] * 8)
        for one in (made, tables):
            one.ended(asked)
            assert one.n_tokens <= 20_000
        controller.ended(asked)
    assert made.n_tokens > 10_000 and tables.n_tokens > 2000
    assert not controller._survival._own and not controller._refused
