"""Stops of regular expressions against Python's ``re``, and however a text is cut."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from kvasir.core.errors import RequestError
from kvasir.tokenizer.stops import StopStrings
from kvasir.validation.regex import PatternMatcher, automaton

ATOMS = st.sampled_from(
    [
        *"abcA",
        ".",
        "[ab]",
        "[^a]",
        r"\w",
        r"\W",
        "[a-c]",
        r"\n",
        r"[^\d-]",
        r"[\w-]",
        "[]a-b]",
        r"\.",
    ]
)
REPEATS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{,2}", "*?", "+?"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, REPEATS).map(lambda pair: f"({pair[0]}){pair[1]}"),
    )


BODIES = st.recursive(ATOMS, _grown, max_leaves=6)
PATTERNS = st.tuples(st.sampled_from(["", "(?i)", "(?s)", "(?is)"]), BODIES).map("".join)
TEXTS = st.text("abcA-.1\n]", max_size=10)


def first_match(pattern: str, text: str) -> tuple[int, int] | None:
    """Where the first match to end ends, and where the longest of those begins."""
    compiled = re.compile(pattern)
    for end in range(1, len(text) + 1):
        for begin in range(end):
            if compiled.fullmatch(text, begin, end):
                return begin, end
    return None


@given(PATTERNS, TEXTS, st.lists(st.integers(1, 4), max_size=6))
def test_the_first_match_stops_the_text(pattern: str, text: str, cuts: list[int]) -> None:
    try:
        automaton((pattern,))
    except RequestError:
        assert re.fullmatch(pattern, "") is not None, "only what matches nothing is refused here"
        return
    stream, seen, at = StopStrings((), False, PatternMatcher((pattern,))), "", 0
    matched = None
    for size in [*cuts, len(text)]:
        piece, at = text[at : at + size], at + size
        told, matched = stream.push(piece)
        seen += told
        if matched is not None:
            break
    found = first_match(pattern, text)
    if found is None:
        assert matched is None and seen + stream.flush() == text
    else:
        assert matched == pattern and seen == text[: found[0]]
