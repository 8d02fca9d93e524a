"""Regular expressions that stop a text: what they match, what is refused, and what it costs."""

from __future__ import annotations

import pytest

from kvasir.core.errors import RequestError
from kvasir.tokenizer.stops import StopStrings
from kvasir.validation.names import OWN
from kvasir.validation.regex import MAX_STATES, Automaton, PatternMatcher, automaton
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.stops import check_stops


def stopped(
    patterns: str | list[str], *pieces: str, stops: tuple[str, ...] = (), include: bool = False
) -> tuple[str, str | None]:
    """The text that a client sees, and what ended it."""
    matcher = PatternMatcher((patterns,) if isinstance(patterns, str) else tuple(patterns))
    stream = StopStrings(stops, include, matcher)
    seen = ""
    for piece in pieces:
        text, matched = stream.push(piece)
        seen += text
        if matched is not None:
            return seen, matched
    return seen + stream.flush(), None


@pytest.mark.parametrize(
    ("pattern", "text", "seen"),
    [
        (r"\n(User|Assistant): ", "hi\nUsers\nUser: no", "hi\nUsers"),
        (r"[0-9]{3}-[0-9]{4}", "call 12-3456, 555-0199 now", "call 12-3456, "),
        (r"a+b", "caaab", "c"),
        (r"(?i)stop", "a sToP b", "a "),
        (r"(?s)<.>", "a<\n>b", "a"),
        (r"<.>", "a<\n>b<c>", "a<\n>b"),
        (r"x{2,3}y", "xxxxy", "x"),
        (r"[^\w\s]", "so_1 é!", "so_1 é"),
        (r"\d\D", "٣x", ""),
        (r"(?:ab)*?c", "ababc", ""),
        (r"a|abc", "abc", ""),
        (r"\x41\u00e9\U0001F600\.", "zAé😀.", "z"),
        (r"[]a]|[a-]b", "x-b", "x"),
        ("x{,2}y", "axxxy", "ax"),
        ("a{b", "a{b", ""),
        ("never", "nev", "nev"),
    ],
)
def test_what_ends_a_text(pattern: str, text: str, seen: str) -> None:
    assert stopped(pattern, text)[0] == seen
    assert stopped(pattern, *text)[0] == seen


def test_the_first_to_end_wins_and_of_these_the_longest() -> None:
    assert stopped("b.*d", "abcd", stops=("c",)) == ("ab", "c")
    assert stopped("bc", "abcd", stops=("c",)) == ("a", "bc")
    assert stopped("c", "abcd", stops=("bc",)) == ("a", "bc")
    assert stopped(["c", "bc"], "abcd") == ("a", "bc")
    assert stopped("b+", "abb", include=True) == ("ab", "b+")


def test_text_is_held_back_as_long_as_it_may_belong_to_a_match() -> None:
    stream = StopStrings((), False, PatternMatcher((r"END\d+;",)))
    assert stream.push("so E") == ("so ", None)
    assert stream.push("NE") == ("EN", None)
    assert stream.push("ND12") == ("", None)
    assert stream.push("x") == ("END12x", None)
    assert stream.push("END1;more") == ("", r"END\d+;")


def test_a_match_may_begin_before_min_tokens_and_not_end() -> None:
    stream = StopStrings((), False, PatternMatcher(("ab+",)))
    assert stream.push("ab", may_end=False) == ("", None)
    assert stream.push("b") == ("", "ab+")


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "a*", "(a|b?)", "[", "[b-a]", "[a-\\d]", "(a", "a)", "*a", "a**", "a++", "\\"),
        *("^a", "a$", r"\bx", r"\A", r"(a)\1", "(?=a)", "(?<!a)b", "(?P=x)", "(?#c)", "(?x)a"),
        *("(?>a)", "(?i:a)", r"\N{DIGIT ONE}", r"\U00110000", "a{3,2}", "x" * 257),
        *(
            "a{129}",
            ".{1,100000}",
            "(a{1000}){1000}",
            "(){1,1000000000}",
            "(" * 33 + "a" + ")" * 33,
        ),
        *("(?:" * 8000 + "a" + ")" * 8000, "a{" + "9" * 200 + "}", "((((a{9}){9}){9}){9})"),
    ],
)
def test_refused(pattern: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_stops(SamplingParams(stop_regex=pattern), 100, OWN)
    assert caught.value.param == "stop_regex" and len(caught.value.message) < 200


def test_what_is_repeated_counts_for_all_patterns_together() -> None:
    half = f"a{{{MAX_STATES // 2}}}"
    automaton((half, half))
    with pytest.raises(RequestError, match=f"{MAX_STATES + 1} characters"):
        automaton((half, half, "b"))


HOSTILE = (
    "(a+)+b",
    "(a|a)*c",
    "(a|aa)+d",
    "(.*)*x",
    ".{1,127}x",
    "a{128}",
    "([a-z]+)*@",
    "(a?){64}b",
)


@pytest.mark.parametrize("pattern", HOSTILE)
def test_no_text_costs_more_than_its_length(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What backtracking takes years for: the most that a character does is to look at every
    state."""
    looked = 0

    def counted(self: Automaton, states: int) -> int:
        nonlocal looked
        looked += states.bit_count()
        return after(self, states)

    after = Automaton._after
    monkeypatch.setattr(Automaton, "_after", counted)
    automaton.cache_clear()
    matcher, most = PatternMatcher((pattern,)), 0
    for i in range(3000):
        before = looked
        if matcher.advance("a" if i % 50 else "z") is not None:
            break
        most = max(most, looked - before)
        assert len(matcher._threads) <= MAX_STATES
    assert most <= MAX_STATES


def test_what_an_automaton_remembers_is_bounded() -> None:
    made = automaton(("[^b]{127}z",))
    matcher = PatternMatcher(("[^b]{127}z",))
    for i in range(20_000):
        matcher.advance(chr(0x100 + i))
    assert len(made._steps) <= 256 and len(made._masks) <= 4096
