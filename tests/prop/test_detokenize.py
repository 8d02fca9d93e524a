"""Streamed decoding says exactly what decoding says, and never splits a character."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.tokenizer.detokenize import StreamDecoder
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.stops import StopStrings
from kvasir.tokenizer.tokenizer import Tokenizer
from tests.tiny_vocab import byte_level, characters, sentence_piece, unigram, word_piece

KINDS = {
    "byte_level": byte_level,
    "sentence_piece": sentence_piece,
    "characters": characters,
    "word_piece": word_piece,
    "unigram": unigram,
}
LOSSLESS = ("byte_level", "sentence_piece", "characters")


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(spec_from_gguf(KINDS[kind]()))


def stream(decoder: StreamDecoder, ids: list[int]) -> list[str]:
    return [decoder.push(i) for i in ids] + [decoder.flush()]


@pytest.mark.parametrize("kind", KINDS)
@given(st.data(), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_ids(kind: str, data: st.DataObject, skip: bool, continues: bool) -> None:
    tokenizer = tokenizer_of(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=40))
    deltas = stream(StreamDecoder(tokenizer, skip, continues), ids)
    assert "".join(deltas) == tokenizer.decode(ids, skip, continues)


@pytest.mark.parametrize("kind", LOSSLESS)
@given(st.text(max_size=30), st.text(alphabet="the é你🙂👩‍\n", max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_text(kind: str, first: str, second: str) -> None:
    tokenizer = tokenizer_of(kind)
    text = first + second
    if kind != "byte_level":  # writes a space as U+2581, and cannot tell the two apart
        text = text.replace("\u2581", "")
    ids = tokenizer.encode(text, parse_special=False)
    deltas = stream(StreamDecoder(tokenizer), ids)
    assert "".join(deltas) == text
    assert deltas[-1] == "", "a whole text leaves nothing to flush"
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)


def test_characters_come_whole() -> None:
    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer.encode("é你🙂", parse_special=False)
    assert [delta for delta in stream(StreamDecoder(tokenizer), ids) if delta] == ["é", "你", "🙂"]


def test_bytes_that_are_no_text() -> None:
    tokenizer = tokenizer_of("sentence_piece")
    ids = [tokenizer.token_id(f"<0x{byte:02X}>") or 0 for byte in b"\xe4\xbd"]
    assert stream(StreamDecoder(tokenizer), ids) == ["", "", "\ufffd"]
    a = tokenizer.token_id("a") or 0
    assert stream(StreamDecoder(tokenizer), [*ids, a]) == ["", "", "\ufffda", ""]


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("abc", max_size=4), max_size=8),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_stops_do_not_depend_on_the_cuts(
    stops: list[str], deltas: list[str], include: bool
) -> None:
    text = "".join(deltas)
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(s) for s in stops)]
    finder = StopStrings(stops, include)
    results = [finder.push(delta) for delta in deltas]
    sent = "".join(part for part, _ in results) + finder.flush()
    matched = results[-1][1] if results else None
    if not ends:
        assert (sent, matched) == (text, None)
        return
    whole = text[: ends[0]]
    longest = max((s for s in stops if whole.endswith(s)), key=len)
    assert matched == longest
    assert sent == (whole if include else whole.removesuffix(longest))
