"""Mutants of tokenizer files load and work, or are refused with one line; whole texts come back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.core.errors import ModelError, RequestError
from kvasir.tokenizer.protobuf import read_fields
from kvasir.tokenizer.sentencepiece import read_sentence_pieces
from kvasir.tokenizer.tokenizer import Tokenizer
from tests.tiny_vocab import sentence_piece, unigram
from tests.tokenizer_files import (
    ADDED,
    RANKED,
    load_folder,
    message,
    sentence_pieces,
    tekken,
    tiktoken,
)

RANKED_FEW = [*RANKED[:256], b"the", b" the"]
PIECES = sentence_pieces(sentence_piece(), {3: 2}, {3: 1, 4: 0})
FILES: dict[str, tuple[str, bytes]] = {
    "bpe": ("tokenizer.model", PIECES),
    "unigram": ("tokenizer.model", sentence_pieces(unigram(), {3: 1, 40: 3, 41: 0}, {4: 0})),
    "tekken": ("tekken.json", json.dumps(tekken(RANKED_FEW)).encode()),
    "tiktoken": ("tiktoken.model", tiktoken(RANKED_FEW)),
}
LISTED = {str(len(RANKED_FEW) + i): token for i, token in enumerate(ADDED.values())}


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp())


def load(name: str, data: bytes) -> Tokenizer:
    files: dict[str, bytes | dict[str, object]] = {name: data}
    if name == "tiktoken.model":
        files["tokenizer_config.json"] = {"added_tokens_decoder": LISTED}
    with tempfile.TemporaryDirectory(dir=folder()) as place:
        return load_folder(Path(place), files)


@pytest.fixture(scope="module", autouse=True)
def _clean() -> Iterator[None]:
    yield
    folder().rmdir()


@cache
def whole(kind: str) -> Tokenizer:
    return load(*FILES[kind])


@pytest.mark.parametrize("kind", ["bpe", "tekken", "tiktoken"])
@given(st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_texts_come_back(kind: str, text: str) -> None:
    if kind == "bpe":  # writes a space as U+2581, and cannot tell the two apart
        text = text.replace("\u2581", "")
    tokenizer = whole(kind)
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


@pytest.mark.parametrize("kind", FILES)
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_mutants(kind: str, data: st.DataObject) -> None:
    name, found = FILES[kind]
    mutant = bytearray(found)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutant) - 1))
        mutant[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        tokenizer = load(name, bytes(mutant[: data.draw(st.integers(len(mutant) // 2, 1 << 20))]))
        tokenizer.decode(tokenizer.encode("the quick é<|im_end|>"))
    except ModelError as error:
        assert "\n" not in error.message
    except RequestError as error:  # a map of characters, or an expression, that fails on a text
        assert "cannot read the text" in error.message


@given(st.binary(max_size=60))
@settings(max_examples=500, deadline=None)
def test_random_bytes_are_no_sentence_pieces(data: bytes) -> None:
    try:
        read_sentence_pieces(data, "pieces")
    except ModelError as error:
        assert "\n" not in error.message


values = st.one_of(st.integers(0, (1 << 64) - 1), st.binary(max_size=200))


@given(st.lists(st.tuples(st.integers(1, 1 << 29), values), max_size=12))
@settings(max_examples=300, deadline=None)
def test_fields_come_back(fields: list[tuple[int, int | bytes]]) -> None:
    assert list(read_fields(message(fields))) == fields


@given(st.lists(st.tuples(st.integers(1, 99), values), min_size=1, max_size=5), st.data())
@settings(max_examples=200, deadline=None)
def test_a_message_that_ends_early_is_refused(
    fields: list[tuple[int, int | bytes]], data: st.DataObject
) -> None:
    whole_message = message(fields)
    cut = whole_message[: data.draw(st.integers(0, len(whole_message) - 1))]
    try:
        assert list(read_fields(cut)) == fields[: len(list(read_fields(cut)))]
    except ModelError as error:
        assert "byte" in error.message
