"""Folders whose tokenizer is a file of SentencePiece, Mistral or tiktoken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvasir.core.errors import ModelError
from kvasir.tokenizer.from_gguf import spec_from_gguf
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

BPE = {3: 2, 35: 1}
UNIGRAM = {3: 1, 40: 3, 41: 0}
TEXTS = ("the quick dog", "  two  spaces\n\n\ttabs ", "Ünï 你好 🙂", "1234", "", " ")


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[str | None]:
    return [tokenizer.piece(i) for i in tokenizer.encode(text, **options)]


@pytest.mark.parametrize("has_prefix", [0, 1])
def test_sentence_piece_files_are_as_gguf(tmp_path: Path, has_prefix: int) -> None:
    data = sentence_pieces(sentence_piece(), BPE, {3: has_prefix, 4: 0})
    tokenizer = load_folder(tmp_path, {"tokenizer.model": data})
    key = "tokenizer.ggml.add_space_prefix"
    same = Tokenizer(spec_from_gguf(sentence_piece(**{key: bool(has_prefix)})))
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == same.encode(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.special_ids == same.special_ids == {0, 1, 2}


def test_unigram_files_are_as_gguf(tmp_path: Path) -> None:
    data = sentence_pieces(unigram(), UNIGRAM, {4: 1})
    settings = {"add_bos_token": True}
    tokenizer = load_folder(tmp_path, {"tokenizer.model": data, "tokenizer_config.json": settings})
    same = Tokenizer(spec_from_gguf(unigram(**{"tokenizer.ggml.remove_extra_whitespaces": True})))
    for text in (*TEXTS, "a \uffff"):
        assert tokenizer.encode(text) == same.encode(text)


def test_settings_say_what_is_put_around_a_text(tmp_path: Path) -> None:
    data = sentence_pieces(sentence_piece(), BPE, {})
    settings: dict[str, object] = {"add_bos_token": False, "add_eos_token": True}
    files: dict[str, Any] = {"tokenizer.model": data, "tokenizer_config.json": settings}
    assert pieces(load_folder(tmp_path, files), "the") == ["▁the", "</s>"]
    settings["bos_token"] = {"content": "a"}
    settings["add_bos_token"] = True
    assert pieces(load_folder(tmp_path, files), "the") == ["a", "▁the", "</s>"]


def test_listed_tokens_follow_the_vocabulary(tmp_path: Path) -> None:
    data = sentence_pieces(sentence_piece(), BPE, {})
    n = len(sentence_piece()["tokenizer.ggml.tokens"])
    settings = {
        "added_tokens_decoder": {
            str(n + 2): {"content": "<|tool|>", "special": False},
            str(n): {"content": "<|im_end|>", "special": True},
            "1": {"content": "<s>", "special": True},
        }
    }
    tokenizer = load_folder(tmp_path, {"tokenizer.model": data, "tokenizer_config.json": settings})
    assert tokenizer.encode("<|im_end|><|tool|>", add_special=False) == [n, n + 2]
    assert tokenizer.special_ids == {0, 1, 2, n, n + 1}
    assert tokenizer.piece(n + 1) == f"[UNUSED_{n + 1}]"
    assert tokenizer.decode([n, n + 2], skip_special=False) == "<|im_end|><|tool|>"


def test_tekken(tmp_path: Path) -> None:
    tokenizer = load_folder(tmp_path, {"tekken.json": tekken()})
    the = RANKED.index(b"the") + 8
    assert tokenizer.encode("the") == [1, the]
    assert tokenizer.encode("</s>the", add_special=False) == [2, the]
    assert [tokenizer.piece(i) for i in range(8)] == (
        ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<SPECIAL_5>", "<SPECIAL_6>", "<SPECIAL_7>"]
    )
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (1, (2,), 8 + len(RANKED))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    plain = tokenizer.encode("[INST]", parse_special=False, add_special=False)
    assert tokenizer.decode(plain) == "[INST]"


def test_tekken_of_a_version_without_special_tokens(tmp_path: Path) -> None:
    file = tekken(special_tokens=None)
    file["config"] |= {"default_num_special_tokens": 21, "default_vocab_size": 21 + 256}
    tokenizer = load_folder(tmp_path, {"tekken.json": file})
    assert [tokenizer.piece(i) for i in (1, 3, 9, 20)] == (
        ["<s>", "[INST]", "[TOOL_CALLS]", "<SPECIAL_20>"]
    )
    assert tokenizer.vocab_size == 21 + 256
    assert tokenizer.encode("the")[1:] == [21 + byte for byte in b"the"]


@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer.model", "qwen.tiktoken"])
def test_tiktoken(tmp_path: Path, name: str) -> None:
    settings = {"added_tokens_decoder": ADDED, "bos_token": "[BOS]", "eos_token": "[EOS]"}
    tokenizer = load_folder(tmp_path, {name: tiktoken(), "tokenizer_config.json": settings})
    n = len(RANKED)
    assert tokenizer.encode("the[EOS]") == [RANKED.index(b"the"), n + 1]
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (n, (n + 1,), n + 3)
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    settings["add_bos_token"] = True
    tokenizer = load_folder(tmp_path, {name: tiktoken(), "tokenizer_config.json": settings})
    assert tokenizer.encode("the") == [n, RANKED.index(b"the")]


def test_neighbours_of_the_lowest_rank_are_merged_first(tmp_path: Path) -> None:
    ranked = [*RANKED[:256], b"bc", b"ab", b"abc"]
    tokenizer = load_folder(tmp_path, {"tekken.json": tekken(ranked)})
    assert pieces(tokenizer, "abcabd", add_special=False) == ["abc", "ab", "d"]
    assert pieces(tokenizer, "abc", add_special=False) == ["abc"]
    without = load_folder(tmp_path, {"tekken.json": tekken(ranked[:-1])})
    assert pieces(without, "abc", add_special=False) == ["a", "bc"]


def test_tokenizer_json_is_read_before_others(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        load_folder(tmp_path, {"tokenizer.json": b"{", "tekken.json": tekken()})


def broken(**config: object) -> dict[str, object]:
    file = tekken()
    return {**file, "config": {**file["config"], **config}}


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("tekken.json", b"[]", "is no tekken.json"),
        ("tekken.json", b'{"config": {"pattern": 3}}', "Expected `str`, got `int`"),
        ("tekken.json", broken(default_vocab_size=10**9), "1000000000 tokens in all"),
        ("tekken.json", broken(default_vocab_size=9_000), "vocab has"),
        ("tekken.json", broken(default_num_special_tokens=2), "with 5 special tokens"),
        ("tekken.json", broken(default_num_special_tokens=10**9), "default_num_special_tokens is"),
        ("tekken.json", broken(pattern="("), "the pattern is not valid"),
        ("tekken.json", tekken(special_tokens=[]), "special_tokens lacks <s>"),
        ("tekken.json", tekken(RANKED[1:]), "lacks tokens for 1 of 256 bytes"),
        ("tekken.json", tekken([*RANKED, b"<s>"]), "the same token twice"),
        ("tekken.json", tekken([*RANKED, b"x" * 300]), "has 300 characters"),
        ("tokenizer.model", tiktoken(), "has no special tokens"),
        ("tokenizer.model", tiktoken() + b"!! 3\n", "is no token and rank"),
        ("tokenizer.model", tiktoken() + b"YQ== 3\n", "the ranks are not 0 to"),
        ("tokenizer.model", b"", "pieces has 0 entries"),
        ("tokenizer.model", b"\x0a\x7f", "field 1 at byte"),
        ("tokenizer.model", b"\x0b", "the unknown kind 3"),
        ("tokenizer.model", b"\xff" * 20, "does not end"),
        ("tokenizer.model", message([(1, message([(1, b"\xff")]))]), "is not valid UTF-8"),
        ("tokenizer.model", message([(1, message([(2, b"abc")]))]), "a score has 3 bytes"),
        ("tokenizer.model", message([(1, 7)]), "holds a number, expected bytes"),
        ("tokenizer.model", sentence_pieces(sentence_piece(), {3: 3}, {}), "algorithm 3"),
        ("tokenizer.model", sentence_pieces(sentence_piece(), {3: 2, 24: 1}, {}), "as_suffix"),
        ("tokenizer.model", sentence_pieces(sentence_piece(), {3: 2}, {5: 0}), "escape_white"),
        (
            "tokenizer.model",
            sentence_pieces(sentence_piece(), {40: 10**6}, {}),
            "unk_id is 1000000",
        ),
    ],
)
def test_bad_files_are_refused_with_one_line(
    tmp_path: Path, name: str, data: Any, reason: str
) -> None:
    with pytest.raises(ModelError) as caught:
        load_folder(tmp_path, {name: data})
    assert reason in caught.value.message
    assert str(tmp_path / name) in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ([], "added_tokens_decoder is no object"),
        ({"x": {"content": "a"}}, "an added token has the id x"),
        ({"999999999": {"content": "a"}}, "an added token has the id 999999999"),
        ({"5": 3}, "added_tokens_decoder holds 3"),
        ({"5": {"content": "<new>"}}, "the added token 5 is '<new>'"),
        ({"5": {"content": "a", "special": 1}}, "'special' is '1', expected true or false"),
    ],
)
def test_bad_lists_are_named(tmp_path: Path, listed: object, reason: str) -> None:
    data = sentence_pieces(sentence_piece(), BPE, {})
    settings = {"added_tokens_decoder": listed}
    with pytest.raises(ModelError) as caught:
        load_folder(tmp_path, {"tokenizer.model": data, "tokenizer_config.json": settings})
    assert reason in caught.value.message
