"""Rows of the language head turn a vector into the logits that the program would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvasir import LLM
from kvasir.core.errors import ModelError, RequestError
from kvasir.text.heads import Head, Heads
from kvasir.text.pairs import method_of, pairs_of, probabilities
from kvasir.weights.source import open_model
from tests import tiny, tiny_kin
from tests.loading import load, reference_logits

PROMPT = tuple(7 * i % 90 + 3 for i in range(12))
IDS = (5, 90, 17)


@pytest.mark.parametrize(
    "write",
    [
        lambda p: tiny.write_hf(tiny.llama(), p),
        lambda p: tiny.write_hf(tiny.llama(tie_word_embeddings=True), p),
        lambda p: tiny.write_hf(tiny.gemma3(), p),
        lambda p: tiny.write_hf(tiny_kin.granite(), p),
        lambda p: tiny.write_gguf_model(tiny.llama(), p / "m.gguf", "Q4_1"),
    ],
    ids=["llama", "tied", "gemma3 with a cap", "granite with a divisor", "GGUF"],
)
def test_logits_are_those_of_the_program(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path)
    expected = reference_logits(load(path, "float32"), PROMPT)[-1, IDS]
    with LLM(str(path), dtype="float32", max_model_len=64, threads=1) as llm:
        (output,) = llm.encode(list(PROMPT), pooling="last")
    vector = output.outputs.data.astype("<f4").tobytes()
    assert np.allclose(Heads(open_model(path)).of_tokens(IDS).logits(vector), expected, rtol=1e-4)


def test_a_head_in_numbers() -> None:
    head = Head(np.array([[1.0, 2.0], [0.0, -1.0]]), (0.5, 0.0), softcap=0.0)
    assert head.logits(np.array([3.0, 4.0], "<f4").tobytes()) == (11.5, -4.0)


def test_a_model_without_a_head_says_so(tmp_path: Path) -> None:
    model = tiny.llama()
    del model.tensors["lm_head.weight"]
    heads = Heads(open_model(tiny.write_hf(model, tmp_path)))
    with pytest.raises(ModelError, match="no language head"):
        heads.of_tokens(IDS)


def test_odds() -> None:
    assert probabilities([1.0, 1.0]) == [0.5, 0.5]
    assert probabilities([2.0, 0.0])[0] == pytest.approx(1 / (1 + np.exp(-2)))
    assert probabilities([-5e3, 5e3]) == [0.0, 1.0]
    assert probabilities([0.0]) == [0.5]
    assert probabilities([-5e3])[0] < 1e-300


@pytest.mark.parametrize(
    ("asked", "problem", "wants_vectors", "found"),
    [
        ("auto", None, False, "logits"),
        ("auto", None, True, "cosine"),
        ("auto", "no template", False, "cosine"),
        ("cosine", None, False, "cosine"),
        ("logits", None, True, "logits"),
    ],
)
def test_how_texts_are_compared(
    asked: str, problem: str | None, wants_vectors: bool, found: str
) -> None:
    assert method_of(asked, problem, wants_vectors=wants_vectors) == found


@pytest.mark.parametrize(
    ("asked", "says"),
    [("logits", "no template: use"), ("classifier", "no classifier head"), ("x", "'x'")],
)
def test_methods_that_cannot_be_are_refused(asked: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        method_of(asked, "no template", wants_vectors=False)


def test_pairs() -> None:
    assert pairs_of(1, 3) == ((0, 0), (0, 1), (0, 2))
    assert pairs_of(2, 1) == ((0, 0), (1, 0))
    assert pairs_of(2, 2) == ((0, 0), (1, 1))
    with pytest.raises(RequestError, match="2 texts on one side and 3"):
        pairs_of(2, 3)
