"""Where tokens begin in their text: by their bytes, and as the library's alignment has it."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tokenizers import AddedToken, processors

from kvasir.tokenizer.detokenize import Places
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.tokenizer import Tokenizer
from tests.tiny_vocab import byte_level, sentence_piece


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    spec = spec_from_gguf(sentence_piece() if kind == "sentence_piece" else byte_level())
    if kind == "trimmed":
        spec.backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return Tokenizer(spec)


KINDS = ("byte_level", "trimmed", "sentence_piece")


def char_of_each_byte(data: bytes) -> list[int]:
    """The character of ``data``, decoded with U+FFFD for what is no text, that each byte is in."""
    chars: list[int] = []
    at = n = 0
    while at < len(data):
        try:
            data[at:].decode()
            size = len(data[at:].decode()[0].encode())
        except UnicodeDecodeError as error:
            size = (
                error.end
                if error.start == 0
                else len(data[at:][: error.start].decode()[0].encode())
            )
        chars += [n] * size
        at, n = at + size, n + 1
    return [*chars, n]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), skip=st.booleans(), start=st.integers(0, 3))
def test_any_ids(kind: str, data: st.DataObject, skip: bool, start: int) -> None:
    tokenizer = tokenizer_of(kind)
    some = [tokenizer.token_id(piece) or 0 for piece in ("ä", "½", "ł", "Ã", "©", "the", "é")]
    ids = data.draw(
        st.lists(st.sampled_from(some) | st.integers(0, tokenizer.vocab_size - 1), max_size=20)
    )
    skipped = tokenizer.special_ids if skip else frozenset()
    pieces = [b"" if i in skipped else tokenizer.token_bytes(i) for i in ids]
    chars = char_of_each_byte(b"".join(pieces))
    expected = [start + chars[len(b"".join(pieces[:n]))] for n in range(len(pieces))]
    places = Places(tokenizer, skip, continues=True, at=start)
    found = [places.next(i) for i in ids]
    assert [place for place, piece in zip(found, pieces, strict=True) if piece] == [
        place for place, piece in zip(expected, pieces, strict=True) if piece
    ]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(text=st.text("the fox é你🙂\n  quick", max_size=25))
def test_a_text_and_its_ids_agree(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text, add_special=False)
    places = Places(tokenizer, skip_special=False)
    assert tokenizer.begins(text, add_special=False) == [places.next(i) for i in ids]


def test_what_is_not_in_the_text_takes_no_place() -> None:
    """BOS and EOS around it, and the spaces that a special token swallows."""
    spec = spec_from_gguf(
        byte_level(**{"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True})
    )
    spec.backend.add_special_tokens([AddedToken("<mid>", lstrip=True, rstrip=True)])
    ids = frozenset(spec.backend.get_added_tokens_decoder())
    tokenizer = Tokenizer(replace(spec, added_ids=ids, special_ids=ids))
    text = "the  <mid>  foxé"
    names = [tokenizer.piece(i) for i in tokenizer.encode(text)]
    assert names == ["<|im_start|>", "the", "<mid>", "fox", "Ã", "©", "<|im_end|>"]
    assert tokenizer.begins(text) == [0, 0, 3, 12, 15, 15, 16]
