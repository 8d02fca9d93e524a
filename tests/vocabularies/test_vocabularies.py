"""The vocabularies of llama.cpp's tests: each with texts and the ids that ``transformers`` gives
them, or those that llama.cpp gives.

KVASIR_VOCABULARIES names the folder in which they lie as ggml-vocab-NAME.gguf, their texts and ids
as ….gguf.inp and ….gguf.out (``make test-vocabularies`` fetches llama.cpp's).
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import pytest

from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import open_model

FOLDER = os.environ.get("KVASIR_VOCABULARIES")
pytestmark = pytest.mark.skipif(not FOLDER, reason="make test-vocabularies")
PATHS = sorted(Path(FOLDER).glob("ggml-vocab-*.gguf")) if FOLDER else []
WITH_IDS = [path for path in PATHS if path.with_suffix(".gguf.out").exists()]
OTHERS = json.loads((Path(__file__).parent / "ids.json").read_text("utf-8"))
"""Ids that llama.cpp gives the texts of ``TEXTS_OF`` with the vocabularies that have none."""
TEXTS_OF = "ggml-vocab-gpt-2"
NORMALIZED = ("bert-bge", "nomic-bert-moe")
"""Whose texts cannot be had back: accents, or runs of spaces, are lost."""


@cache
def tokenizer_of(path: Path) -> Tokenizer:
    return load_tokenizer(open_model(path))


def texts_of(path: Path) -> list[str]:
    text = path.with_suffix(".gguf.inp").read_bytes().decode("utf-8")
    return text.split("\n__ggml_vocab_test__\n")


def ids_of(path: Path) -> list[list[int]]:
    lines = path.with_suffix(".gguf.out").read_text("utf-8").splitlines()
    return [[int(word) for word in line.split()] for line in lines]


def check(path: Path, texts: list[str], expected: list[list[int]]) -> None:
    tokenizer = tokenizer_of(path)
    for text, ids in zip(texts, expected, strict=False):
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.encode(text, add_special=False, parse_special=False) == ids, text
        if not path.stem.endswith(NORMALIZED):
            assert tokenizer.decode(ids) == text


def test_all_are_there() -> None:
    assert len(WITH_IDS) == 15
    names = {path.stem.removeprefix("ggml-vocab-") for path in PATHS if path not in WITH_IDS}
    assert names == set(OTHERS)


@pytest.mark.parametrize("path", WITH_IDS, ids=lambda path: path.stem)
def test_ids_are_those_of_transformers(path: Path) -> None:
    texts, expected = texts_of(path), ids_of(path)
    assert len(texts) - len(expected) in (0, 1), "a last text may be empty"
    check(path, texts, expected)


@pytest.mark.parametrize("name", OTHERS)
def test_ids_are_those_of_llama_cpp(name: str) -> None:
    path = Path(FOLDER or "") / f"ggml-vocab-{name}.gguf"
    texts = texts_of(path.with_name(f"{TEXTS_OF}.gguf"))
    check(path, texts, OTHERS[name])
