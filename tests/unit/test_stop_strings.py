"""Stop strings: found across deltas, held back, trimmed or kept."""

import tracemalloc

import pytest

from kvasir.core.errors import RequestError
from kvasir.tokenizer.stops import StopStrings
from kvasir.validation.stops import MAX_STOP_BYTES, MAX_STOP_STRINGS


def test_no_stops_pass_everything() -> None:
    stops = StopStrings([])
    assert stops.push("abc") == ("abc", None)
    assert stops.flush() == ""


def test_prefixes_are_held_back() -> None:
    stops = StopStrings(["END", "\n\n"])
    assert stops.push("text E") == ("text ", None)
    assert stops.push("N") == ("", None)
    assert stops.push("d\n") == ("ENd", None)
    assert stops.push("x") == ("\nx", None)
    assert stops.push("EN") == ("", None)
    assert stops.push("D more") == ("", "END")
    assert stops.push("after") == ("", "END")
    assert stops.flush() == ""


def test_flush_returns_what_was_held() -> None:
    stops = StopStrings(["</answer>"])
    assert stops.push("x</ans") == ("x", None)
    assert stops.flush() == "</ans"
    assert stops.push("wer>") == ("wer>", None)


def test_included_stop_ends_the_text() -> None:
    stops = StopStrings(["."], include=True)
    assert stops.push("One. Two.") == ("One.", ".")


@pytest.mark.parametrize(
    ("stops", "text", "kept", "matched"),
    [
        (["b", "ab"], "xaby", "x", "ab"),
        (["abc", "b"], "xabcy", "xa", "b"),
        (["abab"], "aababab", "a", "abab"),
        (["aab"], "aaab", "a", "aab"),
        (["日本"], "今日本", "今", "日本"),
        (["a"], "", "", None),
    ],
)
def test_first_complete_stop_wins(
    stops: list[str], text: str, kept: str, matched: str | None
) -> None:
    whole = StopStrings(stops)
    assert whole.push(text) == (kept, matched)
    single = StopStrings(stops)
    parts = [single.push(char) for char in text]
    assert "".join(part for part, _ in parts) == kept
    assert (parts[-1][1] if parts else None) == matched


def test_empty_stop_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        StopStrings(["x", ""])
    assert caught.value.param == "stop"


def test_a_choice_does_not_pay_for_the_length_of_its_stops() -> None:
    """A request has up to a thousand choices, each with stops of its own."""
    stops = ["a" * (MAX_STOP_BYTES - 1) + chr(98 + i) for i in range(MAX_STOP_STRINGS)]
    tracemalloc.start()
    try:
        choice = StopStrings(stops)
        assert choice.push("aab") == ("aab", None)
        n_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert n_bytes < 16 * 1024
