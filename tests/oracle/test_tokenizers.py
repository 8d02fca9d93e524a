"""Ids and chats against ``transformers``, SentencePiece and tiktoken."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tiktoken import PATTERNS
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import open_model
from tests.tiny_vocab import sentence_piece, unigram, word_piece
from tests.tokenizer_files import (
    ADDED,
    PATTERN,
    RANKED,
    load_folder,
    sentence_pieces,
    tekken,
    tiktoken,
)
from tests.tokenizer_kinds import END, KINDS, NAMES, START, STRIPS, TEMPLATE, tokenizer, write

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}

CONTENTS = ("the fox", *NAMES, f" the  {END}fox {START}", f"{START}{END}  {END}", "a [tool] dog")


@pytest.mark.parametrize("strips", STRIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_names_are_split_as_there(kind: str, strips: str, tmp_path: Path) -> None:
    """``split_special_tokens`` reads every name as words; here those of a user alone."""
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    made = tokenizer(kind, strips)
    words = write(made, tmp_path / "words", "{{ messages[0].content }}")
    chat = write(made, tmp_path / "chat")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "chat" / "tokenizer.json"),
        additional_special_tokens=list(NAMES),
        chat_template=TEMPLATE,
    )
    for content in CONTENTS:
        messages = [{"role": "user", "content": content}]
        split = theirs(content, split_special_tokens=True, add_special_tokens=False)
        if kind != "words":  # there the model makes a special token out of a user's letters
            assert words.encode(messages, False) == split.input_ids, content
        if content not in NAMES and END not in content:
            expected = theirs.apply_chat_template(messages, return_dict=False)
            assert chat.encode(messages, False) == expected, content


def texts() -> list[str]:
    """Random ones, of many scripts."""
    draw = random.Random(7)
    letters = "the quick dog,  éÜ你好🙂\n\t'1234[]<>ﬁ²Ａ\u0301\u3000\u200b"
    return ["".join(draw.choices(letters, k=draw.randint(0, 24))) for _ in range(2_000)]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("merges_spaces", [0, 1])
def test_sentence_piece_files(kind: str, merges_spaces: int, tmp_path: Path) -> None:
    """Of SentencePiece itself, which needs no conversion."""
    library = pytest.importorskip("sentencepiece", reason="make test-oracle")
    normalizer = {3: 1, 4: merges_spaces}
    if kind == "bpe":
        data = sentence_pieces(sentence_piece(), {3: 2, 35: 1}, normalizer)
    else:
        data = sentence_pieces(unigram(), {3: 1, 40: 3, 41: 0, 42: 2}, normalizer)
    theirs = library.SentencePieceProcessor(model_proto=data)
    ours = load_folder(tmp_path, {"tokenizer.model": data})
    for text in texts():
        assert ours.encode(text, add_special=False) == theirs.encode(text), text


@pytest.mark.parametrize("name", ["tekken.json", "tiktoken.model"])
def test_ranks(name: str, tmp_path: Path) -> None:
    library = pytest.importorskip("tiktoken", reason="make test-oracle")
    if name == "tekken.json":
        pattern, first = PATTERN, 8
        ours = load_folder(tmp_path, {name: tekken()})
    else:
        pattern, first = PATTERNS[name], 0
        settings = {"added_tokens_decoder": ADDED}
        ours = load_folder(tmp_path, {name: tiktoken(), "tokenizer_config.json": settings})
    ranks = {token: rank for rank, token in enumerate(RANKED)}
    theirs = library.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    for text in texts():
        expected = [first + i for i in theirs.encode_ordinary(text)]
        assert ours.encode(text, add_special=False) == expected, text


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_piece(lowercase: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    key = "tokenizer.ggml.normalizer.lowercase"
    spec = spec_from_gguf(word_piece(**{key: lowercase}))
    theirs = transformers.BertTokenizer(
        vocab=spec.backend.get_vocab(), do_lower_case=lowercase, strip_accents=None
    )
    ours = Tokenizer(spec)
    for text in texts():
        assert ours.encode(text) == theirs(text).input_ids, text


def test_templates_by_name(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    named = {
        "default": "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}",
        "tool_use": "{{ tools|length }} tools: {{ messages[0].content }}",
    }
    chat = write(tokenizer("byte_level"), tmp_path, named["default"])
    listed = [{"name": name, "template": text} for name, text in named.items()]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    (tmp_path / "chat_template.jinja").unlink()
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    source = open_model(tmp_path)
    chat = ChatTemplate(source, load_tokenizer(source))
    said = [{"role": "user", "content": "Hi"}]
    for tools in (None, [TOOL], [TOOL, TOOL]):
        expected = theirs.apply_chat_template(said, tools=tools, tokenize=False)
        assert chat.render(said, tools=tools) == expected
