"""The kinds of tokenizers that GGUF metadata describes, but for byte-level BPE and SentencePiece's
(``test_tokenizer``)."""

from __future__ import annotations

import pytest

from kvasir.core.errors import ModelError
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.tokenizer import Tokenizer
from tests.tiny_vocab import byte_level, characters, unigram, word_piece

KEY = "tokenizer.ggml."


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[str | None]:
    return [tokenizer.piece(i) for i in tokenizer.encode(text, **options)]


def bert(**extra: object) -> Tokenizer:
    return Tokenizer(spec_from_gguf(word_piece(**extra)))


def t5(**extra: object) -> Tokenizer:
    return Tokenizer(spec_from_gguf(unigram(**extra)))


def gemma(**extra: object) -> Tokenizer:
    return Tokenizer(spec_from_gguf(characters(**extra)))


def test_word_piece_takes_the_longest_beginnings() -> None:
    tokenizer = bert()
    assert pieces(tokenizer, "The dogs, quicker", add_special=False) == (
        ["the", "dog", "##s", ",", "quick", "##er"]
    )
    assert pieces(tokenizer, "the") == ["[CLS]", "the", "[SEP]"]
    assert pieces(tokenizer, "dogzzz q", add_special=False) == ["dog", "##z", "##z", "##z", "q"]
    assert pieces(tokenizer, "dogw, 一一", add_special=False) == ["[UNK]", ",", "一", "一"]
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (2, ())


def test_word_piece_loses_spaces_and_case() -> None:
    tokenizer = bert()
    ids = tokenizer.encode("  The\tDOGS  quicker ")
    assert tokenizer.decode(ids) == "the dogs quicker"
    assert tokenizer.decode(ids[1:3], continues=True) == " the dog"
    cased = bert(**{KEY + "normalizer.lowercase": False})
    assert pieces(cased, "The the", add_special=False) == ["[UNK]", "the"]


def test_word_piece_strips_accents_with_case_unless_told() -> None:
    assert pieces(bert(), "É", add_special=False) == ["[UNK]"]  # an e begins no word here
    assert pieces(bert(), "Thé", add_special=False) == ["the"]
    keeps = bert(**{KEY + "normalizer.strip_accents": False})
    assert pieces(keeps, "É", add_special=False) == ["é"]


def test_names_of_special_tokens_are_words_to_word_piece() -> None:
    tokenizer = bert()
    assert tokenizer.encode("[SEP]", add_special=False) == [3]
    plain = tokenizer.encode("a[SEP] xyzzy", add_special=False, parse_special=False)
    assert 3 not in plain
    assert [tokenizer.piece(i) for i in plain] == ["a", "[", "[UNK]", "]", "[UNK]"]


def test_unigram_takes_the_likeliest_way() -> None:
    tokenizer = t5()
    assert pieces(tokenizer, "the quick dog", add_special=False) == ["▁the", "▁quick", "▁dog"]
    assert pieces(tokenizer, "doge", add_special=False) == ["▁dog", "e"]
    assert pieces(tokenizer, "the") == ["<s>", "▁the", "</s>"]
    assert tokenizer.decode(tokenizer.encode("the quick dog")) == "the quick dog"


def test_unigram_has_one_token_for_all_that_is_unknown_in_a_row() -> None:
    tokenizer = t5()
    assert pieces(tokenizer, "a你好 好", add_special=False) == ["▁", "a", "<unk>", "▁", "<unk>"]


def test_unigram_treats_spaces_as_its_file_says() -> None:
    assert pieces(t5(), " the ", add_special=False) == ["▁", "▁the", "▁"]
    merged = t5(**{KEY + "remove_extra_whitespaces": True})
    assert pieces(merged, "  the   dog ", add_special=False) == ["▁the", "▁dog"]
    assert merged.encode("   ", add_special=False) == []
    bare = t5(**{KEY + "add_space_prefix": False})
    assert pieces(bare, "do the", add_special=False) == ["do", "▁the"]


def test_unused_tokens_are_never_made() -> None:
    tokenizer = t5()
    unused = [i for i in range(tokenizer.vocab_size) if "PAD" in (tokenizer.piece(i) or "")]
    assert len(unused) == 2
    assert not {*unused} & {*tokenizer.encode("[PAD0] [PAD1]")}


def test_gemma_merges_characters() -> None:
    tokenizer = gemma()
    assert pieces(tokenizer, " the dog") == ["<bos>", "▁the", "▁dog"]
    assert pieces(tokenizer, "the  é你\n\n", add_special=False) == (
        ["t", "h", "e", "▁▁", "é", "<0xE4>", "<0xBD>", "<0xA0>", "\n\n"]
    )
    for text in (" the", "the", "  a\n\nb 你🙂\x00", "<0x41>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_gemma_begins_with_bos_unless_the_file_says_otherwise() -> None:
    metadata = characters()
    del metadata[KEY + "add_bos_token"]
    assert Tokenizer(spec_from_gguf(metadata)).encode("a")[0] == 2
    assert gemma(**{KEY + "add_bos_token": False}).encode("a")[0] != 2


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gemma4", ["▁▁", "t", "h", "e"]),
        ("sarvam-moe", ["▁▁", "t", "h", "e"]),
        ("mmbert", ["▁", "▁the"]),
        ("whitespace", ["t", "h", "e"]),
    ],
)
def test_names_whose_tokens_are_characters(pre: str, expected: list[str]) -> None:
    tokenizer = gemma(**{KEY + "model": "gpt2", KEY + "pre": pre})
    assert pieces(tokenizer, "  the", add_special=False) == expected


def test_colons_in_the_names_of_affixes() -> None:
    metadata = byte_level(**{KEY + "add_bos_token": True})
    metadata[KEY + "tokens"][1] = "<seed:bos>"
    tokenizer = Tokenizer(spec_from_gguf(metadata))
    assert pieces(tokenizer, "the") == ["<seed:bos>", "the"]


@pytest.mark.parametrize(
    ("name", "strips"),
    [("Phi-3 mini", (False, True)), ("another", (False, False))],
)
def test_phi_3_takes_spaces_behind_special_tokens(name: str, strips: tuple[bool, bool]) -> None:
    tokenizer = Tokenizer(spec_from_gguf(byte_level(**{"general.name": name})))
    after = tokenizer.encode("<|im_end|>\n\nthe")
    assert len(after) == (2 if strips[1] else 4)


@pytest.mark.parametrize(
    ("make", "extra", "message"),
    [
        (word_piece, {"cls_token_id": None}, "tokenizer.ggml.bos_token_id is missing"),
        (word_piece, {"seperator_token_id": None}, "seperator_token_id is missing"),
        (word_piece, {"unknown_token_id": None}, "unknown_token_id is missing"),
        (word_piece, {"unknown_token_id": 10**6}, "unknown_token_id is 1000000"),
        (word_piece, {"tokens": ["▁##a", "a"], "token_type": [1, 1]}, "same token twice"),
        (unigram, {"unknown_token_id": None}, "unknown_token_id is missing"),
        (unigram, {"scores": [0.0]}, "tokenizer.ggml.scores has 1 entries"),
        (unigram, {"precompiled_charsmap": [300]}, "precompiled_charsmap holds a number"),
        (unigram, {"precompiled_charsmap": [1, 2, 3]}, "precompiled_charsmap of 3 bytes"),
        (unigram, {"precompiled_charsmap": [4, 0, 0, 0, 1, 2, 3, 4, 65]}, "of 9 bytes is corrupt"),
        (characters, {"merges": ["a zz"]}, "tokenizer.ggml.merges does not fit"),
        (characters, {"bos_token_id": 10**6}, "tokenizer.ggml.bos_token_id is 1000000"),
    ],
)
def test_bad_metadata_is_named(make: type, extra: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        spec_from_gguf(make(**{KEY + key: value for key, value in extra.items()}))
    assert message in caught.value.message


def test_runs_of_spaces_that_files_write_as_spaces() -> None:
    """As llama.cpp's converter writes user-defined tokens, of which merges speak with ▁."""
    metadata = characters()
    at = metadata[KEY + "tokens"].index("▁▁")
    written = characters()
    written[KEY + "tokens"][at] = "  "
    written[KEY + "token_type"][at] = 4
    one, other = (Tokenizer(spec_from_gguf(each)) for each in (metadata, written))
    for text in ("  the", "a   b", " \n  "):
        assert one.encode(text) == other.encode(text)
        assert other.decode(other.encode(text)) == text
