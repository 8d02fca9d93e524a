"""Heads for labels behind a dense layer, pairs of texts, and dense layers behind the pooling."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir import LLM
from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.core.errors import ModelError
from kvasir.text.heads import Heads, through
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.tokenizer import Tokenizer
from tests import tiny, tiny_encoders, tiny_heads, tiny_vocab
from tests.e2e.harness import running_server
from tests.gguf_writer import write_gguf
from tests.tiny_heads import HIDDEN, add_dense, dense

OPTIONS: dict[str, Any] = {"max_model_len": 100, "threads": 1, "dtype": "float32"}
IDENTITY = "torch.nn.modules.linear.Identity"
TANH = "torch.nn.modules.activation.Tanh"


def facts_of(path: Path) -> Any:
    return model_facts(load_model(str(path))).vectors


def test_ranked_over_http_as_in_process(tmp_path: Path) -> None:
    folder = tiny_heads.write(tiny_heads.bert(), tmp_path)
    said = {"prompts": {"query": "ask: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    documents = ["the dog", "a quick fox", "the dog"]
    with LLM(str(folder), **OPTIONS) as llm:
        named = llm.embed("fox", prompt_name="query")[0].outputs.embedding
        scores = [output.outputs.score for output in llm.score("the fox", documents)]
    assert scores[0] == scores[2] != scores[1]
    engine = {"max_model_len": 100, "threads": 1, "dtype": "float32"}
    with running_server(folder, executor="cpu", engine=engine) as server:
        asked = {"query": "the fox", "documents": documents}
        told = server.post("/v1/rerank", asked).json()
        found = {x["index"]: x["relevance_score"] for x in told["results"]}
        assert [found[i] for i in range(3)] == scores
        assert told["method"] == "classifier"
        body: dict[str, Any] = {"input": "fox", "prompt_name": "query"}
        assert server.post("/v1/embeddings", body).json()["data"][0]["embedding"] == named
        told = server.post("/v1/embeddings", {**body, "input": [[1, 2]]}).json()
        assert "send no ids" in told["error"]["message"]


def test_tokens_of_the_second_text_are_of_the_second_kind(tmp_path: Path) -> None:
    """The same ids as one text give another label."""
    folder = tiny_heads.write(tiny_heads.bert(), tmp_path)
    with LLM(str(folder), **OPTIONS) as llm:
        (scored,) = llm.score("the fox", "a dog")
        (alone,) = llm.classify([scored.prompt_token_ids])
        assert abs(scored.outputs.score - alone.outputs.probs[0]) > 1e-4


@pytest.mark.parametrize("executor", ["cpu", "reference"])
def test_one_kind_of_tokens_is_one_text(executor: str, tmp_path: Path) -> None:
    folder = tiny_heads.write(tiny_heads.roberta(), tmp_path)
    with LLM(str(folder), executor=executor, **OPTIONS) as llm:
        (scored,) = llm.score("the fox", "a dog")
        (alone,) = llm.classify([scored.prompt_token_ids])
        assert scored.outputs.score == alone.outputs.probs[0]


def bert_gguf(path: Path, left_out: str = "") -> Path:
    metadata, tensors = tiny.gguf_parts(tiny_encoders.bert(), "F32")
    model = tiny_heads.bert()
    names = {
        "cls": "bert.pooler.dense",
        "cls.output": "classifier",
    }
    for name, source in names.items():
        for end in ("weight", "bias"):
            if name != left_out:
                tensors[f"{name}.{end}"] = "F32", model.tensors[f"{source}.{end}"]
    metadata |= {"bert.pooling_type": 4, "bert.classifier.output_labels": ["relevant"]}
    write_gguf(path, metadata, tensors)
    return path


def test_a_gguf_file_has_the_head_of_its_folder(tmp_path: Path) -> None:
    """The ids are told, since the two tokenizers differ."""
    folder = tiny_heads.write(tiny_heads.bert(), tmp_path / "folder")
    path = bert_gguf(tmp_path / "model.gguf")
    assert facts_of(path).labels == ("relevant",)
    prompt = [[5, 9, 30, 12]]
    with LLM(str(folder), **OPTIONS) as llm:
        (wanted,) = llm.classify(prompt)
    with LLM(str(path), **OPTIONS) as llm:
        (found,) = llm.classify(prompt)
    assert found.outputs.probs == pytest.approx(wanted.outputs.probs, rel=1e-6)


def test_a_head_without_its_dense_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cls.output.weight is a head .* without cls.weight"):
        facts_of(bert_gguf(tmp_path / "model.gguf", left_out="cls"))
    model = tiny_heads.roberta()
    del model.tensors["classifier.dense.weight"]  # type: ignore[attr-defined]
    folder = tiny_heads.write(model, tmp_path / "folder")
    with pytest.raises(ModelError, match=r"without classifier.dense.weight before it"):
        facts_of(folder)


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        ("classifier.out_proj.weight", (1, 63), r"expected \[labels, 64\]"),
        ("classifier.dense.weight", (64, 32), r"expected \[64, 64\]"),
        ("classifier.dense.bias", (63,), r"expected \[64\]"),
        ("classifier.out_proj.bias", (2,), r"expected \[1\]"),
    ],
)
def test_parts_that_do_not_fit(name: str, shape: tuple[int, ...], why: str, tmp_path: Path) -> None:
    model = tiny_heads.roberta()
    model.tensors[name] = tiny.uniform(name, shape, 1.0)  # type: ignore[index]
    with pytest.raises(ModelError, match=why):
        facts_of(tiny_heads.write(model, tmp_path))


def test_an_unknown_activation_is_refused(tmp_path: Path) -> None:
    model = tiny_heads.modern_bert(1, classifier_activation="mish")
    with pytest.raises(ModelError, match="classifier_activation is 'mish', supported are"):
        facts_of(tiny_heads.write(model, tmp_path))


def test_dense_layers_behind_the_pooling(tmp_path: Path) -> None:
    """What is told went through them, labels and engine know nothing of it."""
    folder = tiny_heads.write(tiny_encoders.bert(), tmp_path / "with")
    plain = tiny_heads.write(tiny_encoders.bert(), tmp_path / "without")
    add_dense(folder, 2, (96, HIDDEN), TANH, bias=True)
    add_dense(folder, 3, (32, 96), IDENTITY, bias=False)
    assert facts_of(folder).size == 32
    with LLM(str(plain), **OPTIONS) as llm:
        vectors = [output.outputs.data for output in llm.encode(["the dog", "a fox"])]
    inner = [np.tanh(dense(x, 2, (96, HIDDEN), bias=True)) for x in vectors]
    wanted = [dense(x, 3, (32, 96), bias=False) for x in inner]
    with LLM(str(folder), **OPTIONS) as llm:
        found = [output.outputs.data for output in llm.encode(["the dog", "a fox"])]
        (scored,) = llm.score("the dog", "a fox", method="cosine")
        embedded = [output.outputs.embedding for output in llm.embed(["the dog"])]
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    a, b = (np.asarray(x, np.float64) for x in found)
    cosine = float(a @ b) / float(np.sqrt((a @ a) * (b @ b)))
    assert scored.outputs.score == pytest.approx(cosine, rel=1e-9)
    with running_server(folder, executor="cpu", engine=OPTIONS) as server:
        told = server.post("/v1/embeddings", {"input": ["the dog"]}).json()
        assert told["data"][0]["embedding"] == embedded[0]
        assert server.post("/v1/embeddings", {"input": "x", "dimensions": 32}).status_code == 200


def _without_weights(part: Path) -> None:
    (part / "model.safetensors").unlink()


def _said(**fields: object) -> Callable[[Path], None]:
    def change(part: Path) -> None:
        path = part / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_without_weights, "2_Dense/model.safetensors is missing"),
        (_said(in_features=63), "in_features are 32 and 63, linear.weight is"),
        (_said(bias=True), "expected linear.weight and its bias"),
        (_said(activation_function="os.system"), "activation_function 'os.system' is not supp"),
    ],
)
def test_dense_layers_that_lie(change: Callable[[Path], None], why: str, tmp_path: Path) -> None:
    folder = tiny_heads.write(tiny_encoders.bert(), tmp_path)
    change(add_dense(folder, 2, (32, HIDDEN), IDENTITY, bias=False))
    with pytest.raises(ModelError, match=why):
        facts_of(folder)


def test_dense_layers_that_do_not_follow(tmp_path: Path) -> None:
    folder = tiny_heads.write(tiny_encoders.bert(), tmp_path)
    add_dense(folder, 2, (32, HIDDEN), IDENTITY, bias=False)
    add_dense(folder, 3, (16, 31), IDENTITY, bias=False)
    with pytest.raises(ModelError, match=r"dense layer 3 is \(16, 31\), expected \[outputs, 32\]"):
        facts_of(folder)


def test_dense_layers_of_gguf_files(tmp_path: Path) -> None:
    metadata, tensors = tiny.gguf_parts(tiny_encoders.gemma_embedding(), "F32")
    shape = 96, HIDDEN
    tensors["dense_2.weight"] = "F32", tiny.uniform("dense/2", shape, 0.3)
    metadata |= {"gemma-embedding.dense_2_feat_in": HIDDEN, "gemma-embedding.dense_2_feat_out": 96}
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, tensors)
    assert facts_of(path).size == 96
    vector = tiny.uniform("x", (HIDDEN,), 1.0)
    found = through(Heads(load_model(str(path)).source).dense, vector.tobytes())
    wanted = dense(vector, 2, shape, bias=False)
    assert np.allclose(np.frombuffer(found, "<f4"), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("vocabulary", "wanted", "second"),
    [
        (tiny_vocab.word_piece(), [2, 40, 41, 3, 42, 3], 4),
        (tiny_vocab.unigram(), [0, 40, 41, 2, 2, 42, 2], 0),
        (tiny_vocab.byte_level(), [40, 41, 42], 0),
    ],
)
def test_pairs_of_gguf_tokenizers(
    vocabulary: dict[str, object], wanted: list[int], second: int
) -> None:
    """BERT's, XLM-R's, and one of a decoder that puts nothing between texts."""
    tokenizer = Tokenizer(spec_from_gguf(vocabulary))
    assert tokenizer.pair([40, 41], [42]) == (wanted, second)
    assert tokenizer.joins_pairs == (len(wanted) > 3)
