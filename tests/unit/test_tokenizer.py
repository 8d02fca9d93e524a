"""Tokenizers built from GGUF metadata and from tokenizer.json."""

import json
from pathlib import Path

import pytest
from tokenizers import decoders, processors

from kvasir.core.errors import ModelError, RequestError
from kvasir.tokenizer import spelling
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.splits import SPLITS
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import open_model
from tests.gguf_writer import write_gguf, write_safetensors
from tests.smollm2 import smollm2
from tests.tiny_vocab import byte_level, sentence_piece, word_piece

TEXTS = (
    "the quick brown fox",
    "  two  spaces\n\n\ttabs ",
    "Ünïcödé naïve 你好，世界 🙂👩‍👩‍👧‍👦 العربية",
    "3.14159 and 1234567",
    "\x00\x01\x7f\u200b\u00a0",
    "",
    " ",
)


FLAGS = ((True, True), (True, False), (False, False))


def build(**extra: object) -> Tokenizer:
    return Tokenizer(spec_from_gguf(byte_level(**extra)))


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[str | None]:
    return [tokenizer.piece(i) for i in tokenizer.encode(text, **options)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_round_trip(make: type, text: str) -> None:
    tokenizer = Tokenizer(spec_from_gguf(make()))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids, default=0) < tokenizer.vocab_size


def test_merges_apply_in_their_order() -> None:
    tokenizer = build()
    assert pieces(tokenizer, "the quick 42 dog") == ["the", "Ġquick", "Ġ", "4", "2", "Ġdog"]


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_ids_are_surrounded_like_their_text(make: type) -> None:
    tokenizer = Tokenizer(spec_from_gguf(make(**{"tokenizer.ggml.add_bos_token": True})))
    ids = tokenizer.encode("the quick", add_special=False)
    assert tokenizer.surround(ids) == tokenizer.encode("the quick") == [tokenizer.bos_id, *ids]


def test_special_tokens() -> None:
    tokenizer = build()
    text = "<|im_start|>the<|im_end|>"
    ids = tokenizer.encode(text)
    assert [ids[0], ids[-1], len(ids)] == [1, 2, 3]
    assert tokenizer.decode(ids) == "the"
    assert tokenizer.decode(ids, skip_special=False) == text
    assert tokenizer.special_ids == {0, 1, 2}
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2, 0))
    plain = tokenizer.encode(text, parse_special=False)
    assert not tokenizer.special_ids & set(plain)
    assert tokenizer.decode(plain) == text
    assert tokenizer.encode(text) == ids


def test_affixes_follow_the_metadata() -> None:
    key = "tokenizer.ggml.add_bos_token"
    both = build(**{key: True, "tokenizer.ggml.add_eos_token": True})
    word = both.encode("the", add_special=False)
    assert both.encode("the") == [1, *word, 2]
    assert both.encode("") == [1, 2]
    assert build().encode("the") == word
    metadata = byte_level(**{"tokenizer.ggml.pre": "llama-bpe"})
    del metadata[key]
    assert Tokenizer(spec_from_gguf(metadata)).encode("the") == [1, *word]
    assert Tokenizer(spec_from_gguf(sentence_piece())).encode("the")[0] == 1
    assert Tokenizer(spec_from_gguf(sentence_piece(**{key: False}))).encode("the")[0] != 1


def test_sentence_piece_spells_bytes_and_spaces() -> None:
    tokenizer = Tokenizer(spec_from_gguf(sentence_piece()))
    assert pieces(tokenizer, "the dog", add_special=False) == ["▁the", "▁dog"]
    assert pieces(tokenizer, "é你", add_special=False) == ["▁", "é", "<0xE4>", "<0xBD>", "<0xA0>"]
    assert tokenizer.decode(tokenizer.encode("the dog")) == "the dog"
    assert tokenizer.decode(tokenizer.encode("the"), continues=True) == " the"
    assert tokenizer.decode(tokenizer.encode("  the")) == "  the"
    bare = Tokenizer(spec_from_gguf(sentence_piece(**{"tokenizer.ggml.add_space_prefix": False})))
    assert bare.decode(bare.encode(" the")) == " the"
    assert pieces(bare, "dog", add_special=False) == ["d", "o", "g"]


def test_token_bytes() -> None:
    tokenizer = build()
    spelled = {tokenizer.token_bytes(i) for i in range(3, 259)}
    assert spelled == {bytes([byte]) for byte in range(256)}
    assert tokenizer.token_bytes(1) == b"<|im_start|>"
    assert tokenizer.token_bytes(tokenizer.token_id("Ġthe") or 0) == b" the"
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.piece(1 << 40) is None
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""


def test_added_tokens_spell_themselves() -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.tokens"] += ["<é ö>", "Ċ|<tool>"]
    metadata["tokenizer.ggml.token_type"] += [4, 4]
    tokenizer = Tokenizer(spec_from_gguf(metadata))
    ids = tokenizer.encode("the<é ö>Ċ|<tool>dog")
    assert len(ids) == 4
    assert tokenizer.decode(ids) == "the<é ö>Ċ|<tool>dog"


def test_lone_surrogates_are_refused() -> None:
    for times in (1, spelling.LONG):
        with pytest.raises(RequestError, match="surrogate"):
            build().encode("a\ud800b" * times)


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_a_long_text_is_read_like_a_short_one(make: type, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(spec_from_gguf(make()))
    text = "the <|im_end|> Ünï 🙂\n 3.1  " * (spelling.LONG // 20)

    def read() -> list[list[int]]:
        return [*(tokenizer.encode(text, x, y) for x, y in FLAGS), tokenizer.begins(text)]

    found = read()
    monkeypatch.setattr(spelling, "LONG", len(text) + 1)
    assert read() == found


@pytest.mark.parametrize("pre", sorted(SPLITS))
def test_every_split_keeps_the_text(pre: str) -> None:
    tokenizer = build(**{"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False})
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"model": "rwkv"}, "tokenizer.ggml.model 'rwkv' is not supported"),
        ({"model": 3}, "'tokenizer.ggml.model' is '3', expected a string"),
        ({"pre": "klingon"}, "tokenizer.ggml.pre 'klingon' is not supported"),
        ({"tokens": []}, "tokenizer.ggml.tokens has 0 entries"),
        ({"tokens": [1]}, "'tokenizer.ggml.tokens' is"),
        ({"tokens": ["a", "a"]}, "same token twice"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 entries"),
        ({"merges": ["ab"]}, "tokenizer.ggml.merges holds 'ab'"),
        ({"merges": [""]}, "tokenizer.ggml.merges holds ''"),
        ({"merges": ["nothing known"]}, "tokenizer.ggml.merges does not fit"),
        ({"bos_token_id": 10**6}, "tokenizer.ggml.bos_token_id is 1000000"),
        ({"eos_token_id": True}, "'tokenizer.ggml.eos_token_id' is 'True'"),
        ({"add_bos_token": 1}, "'tokenizer.ggml.add_bos_token' is '1', expected true or false"),
    ],
)
def test_bad_metadata_is_named(extra: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(**{f"tokenizer.ggml.{key}": item for key, item in extra.items()})
    assert message in caught.value.message


def test_bad_scores_are_named() -> None:
    with pytest.raises(ModelError, match="scores has 1 entries"):
        spec_from_gguf(sentence_piece(**{"tokenizer.ggml.scores": [0.5]}))
    metadata = sentence_piece()
    metadata["tokenizer.ggml.tokens"][-1] = "x" * 300
    with pytest.raises(ModelError, match="300 characters"):
        spec_from_gguf(metadata)


def folder_of(tmp_path: Path, backend: object, **files: object) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "eos_token_id": 2}')
    (folder / "tokenizer.json").write_text(backend.to_str())
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    write_safetensors(folder / "model.safetensors", {})
    return folder


def test_folder_and_gguf_agree(tmp_path: Path) -> None:
    spec = spec_from_gguf(byte_level())
    spec.backend.decoder = decoders.ByteLevel()
    folder = folder_of(
        tmp_path,
        spec.backend,
        tokenizer_config={"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"},
        generation_config={"eos_token_id": [2, 0]},
    )
    ours, theirs = Tokenizer(spec), load_tokenizer(open_model(folder))
    assert (theirs.bos_id, theirs.eos_ids) == (1, (2, 0))
    assert theirs.special_ids == ours.special_ids
    assert theirs.vocab_size == ours.vocab_size
    for text in (*TEXTS, "<|im_start|>the"):
        assert theirs.encode(text) == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == spec.backend.decode(ours.encode(text))


def test_folder_of_sentence_piece(tmp_path: Path) -> None:
    spec = spec_from_gguf(sentence_piece())
    spec.backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    theirs = load_tokenizer(open_model(folder_of(tmp_path, spec.backend)))
    assert (theirs.bos_id, theirs.eos_ids) == (None, (2,))
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ids[0] == 1
        assert theirs.decode(ids) == spec.backend.decode(ids) == text


def test_folder_of_word_piece(tmp_path: Path) -> None:
    spec = spec_from_gguf(word_piece())
    spec.backend.decoder = decoders.WordPiece()
    settings = {"cls_token": "[CLS]", "sep_token": "[SEP]", "bos_token": None}
    folder = folder_of(tmp_path, spec.backend, tokenizer_config=settings)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    ours, theirs = Tokenizer(spec), load_tokenizer(open_model(folder))
    assert (theirs.bos_id, theirs.eos_ids) == (None, ())
    for text in (*TEXTS, "The dogs, quicker [SEP]"):
        assert theirs.encode(text) == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == ours.decode(ours.encode(text))
    assert theirs.decode(ours.encode("The dogs quicker")) == "the dogs quicker"


def test_a_text_has_the_same_tokens_each_time(tmp_path: Path) -> None:
    """A file may ask for dropout (arXiv 1910.13267), which is for training."""
    spec = spec_from_gguf(byte_level())
    spec.backend.decoder = decoders.ByteLevel()
    spec.backend.model.dropout = 0.9
    tokenizer = load_tokenizer(open_model(folder_of(tmp_path, spec.backend)))
    assert {tuple(tokenizer.encode("the " * 9)) for _ in range(9)} == {
        tuple(build().encode("the " * 9))
    }
    assert len(tokenizer.encode("the " * 9)) == 10


def test_folder_never_truncates(tmp_path: Path) -> None:
    spec = spec_from_gguf(byte_level())
    spec.backend.decoder = decoders.ByteLevel()
    spec.backend.enable_truncation(4)
    spec.backend.enable_padding(length=64)
    spec.backend.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer = load_tokenizer(open_model(folder_of(tmp_path, spec.backend)))
    assert len(tokenizer.encode("the " * 9)) == 10
    assert len(tokenizer.encode("the")) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "tokenizer.json is not a tokenizer"),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "decoder is missing"),
        (
            '{"model": {"type": "BPE", "vocab": {}, "merges": []}, "decoder": '
            '{"type": "WordPiece", "prefix": "@@", "cleanup": true}}',
            "decoder ['WordPiece'] is not supported",
        ),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}', "is not a tokenizer"),
    ],
)
def test_bad_tokenizer_json_is_named(tmp_path: Path, text: str, message: str) -> None:
    folder = folder_of(tmp_path, spec_from_gguf(byte_level()).backend)
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError) as caught:
        load_tokenizer(open_model(folder))
    assert message in caught.value.message


def test_missing_or_large_tokenizer_json(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, spec_from_gguf(byte_level()).backend)
    with (folder / "tokenizer.json").open("ab") as stream:
        stream.truncate((64 << 20) + 1)
    with pytest.raises(ModelError, match="larger than"):
        load_tokenizer(open_model(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        load_tokenizer(open_model(folder))


def test_gguf_file_to_tokens(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", byte_level(), {})
    tokenizer = load_tokenizer(open_model(tmp_path / "m.gguf"))
    assert tokenizer.encode("the") == build().encode("the")


SMOLLM2 = {
    "Hello world": [19556, 905],
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "don't I'll WE'VE he's": [12420, 982, 339, 3060, 26587, 23, 18525, 384, 506],
    "3.14159 1234567 ²³½": [
        35, 30, 33, 36, 33, 37, 41, 216, 33, 34, 35, 36, 37, 38, 39, 216, 19133, 39050, 16738,
    ],
    "a  b   c\n\n\nd\t\te": [81, 216, 278, 256, 265, 1116, 198, 84, 197, 197, 85],
    "Ünïcödé naïve café": [142, 246, 94, 25972, 83, 7466, 84, 2756, 15486, 46494, 37366],
    "🙂": [10813, 38887],
    "<|im_start|>user\nhi<|im_end|>": [1, 4093, 198, 6004, 2],
}  # fmt: skip
"""Ids that llama.cpp's tokenizer gives for the same file."""


def test_smollm2() -> None:
    tokenizer = load_tokenizer(open_model(smollm2()))
    for text, ids in SMOLLM2.items():
        assert tokenizer.encode(text) == ids
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (49152, 1, (2, 0))


def test_long_texts_take_linear_time() -> None:
    tokenizer = load_tokenizer(open_model(smollm2()))
    for unit in ("a", " ", "\n", "🙂", "<|im_start|>", "a "):
        text = unit * (200_000 // len(unit))
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
