"""Merges of a vocabulary against the definition, and the tokenizer that they make."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.tokenizer.merges import merges_by_score

words = st.lists(
    st.text(alphabet="ab\0é😀▁", min_size=1, max_size=7), min_size=1, max_size=40, unique=True
)


def defined(tokens: list[str], order: list[int]) -> list[tuple[str, str]]:
    ids = {token: i for i, token in enumerate(tokens)}
    merges = []
    for whole in order:
        cuts = [(tokens[whole][:cut], tokens[whole][cut:]) for cut in range(1, len(tokens[whole]))]
        known = [(left, right) for left, right in cuts if left in ids and right in ids]
        merges += sorted(known, key=lambda halves: (ids[halves[0]], ids[halves[1]]))
    return merges


@given(words, st.randoms())
@settings(max_examples=200, deadline=None)
def test_merges_are_all_cuts_in_order(tokens: list[str], random) -> None:
    order = [i for i, token in enumerate(tokens) if len(token) > 1]
    random.shuffle(order)
    order = order[: random.randint(0, len(order))]
    assert merges_by_score(tokens, order) == defined(tokens, order)


def test_long_tokens() -> None:
    tokens = ["a" * n for n in range(1, 257)]
    assert merges_by_score(tokens, [255, 3]) == [
        *((tokens[n], tokens[254 - n]) for n in range(255)),
        ("a", "aaa"),
        ("aa", "aa"),
        ("aaa", "a"),
    ]
