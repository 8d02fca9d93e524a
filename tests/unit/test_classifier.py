"""Models with a head for labels: loaded, classified with, ranked with, and kept from writing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir import LLM
from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.core.errors import ModelError, RequestError
from tests import tiny
from tests.e2e.harness import running_server

OPTIONS: dict[str, Any] = {"max_model_len": 512, "threads": 1, "dtype": "float32"}
TEXTS = ["one two three", "four"]


def classifier(n_labels: int, **config: object) -> tiny.TinyModel:
    """A llama whose LM head is replaced."""
    model = tiny.llama(max_position_embeddings=512)
    tensors = {name: x for name, x in model.tensors.items() if name != "lm_head.weight"}
    tensors["score.weight"] = tiny.uniform("score", (n_labels, 64), 1.0)
    names = {"architectures": ["LlamaForSequenceClassification"], **config}
    return replace(model, config={**model.config, **names}, tensors=tensors)


def expected(model: tiny.TinyModel, vectors: list[Any]) -> list[Any]:
    """Softmax of the head over the vectors."""
    logits = np.stack(vectors).astype(np.float64) @ model.tensors["score.weight"].T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)).tolist()


def test_labels_and_their_probabilities(tmp_path: Path) -> None:
    model = classifier(3, id2label={"0": "good", "1": "bad", "2": "odd"})
    with LLM(str(tiny.write_hf(model, tmp_path)), **OPTIONS) as llm:
        vectors = [output.outputs.data for output in llm.encode(TEXTS, pooling="last")]
        found = [output.outputs.probs for output in llm.classify(TEXTS)]
        assert np.allclose(found, expected(model, vectors), rtol=1e-6)
        with pytest.raises(RequestError, match="writes none"):
            llm.generate("x", use_tqdm=False)
        with pytest.raises(RequestError, match="good, bad, odd, which ranks nothing"):
            llm.score("a", "b", method="classifier")
        assert llm.score("a", "b", method="cosine")[0].outputs.method == "cosine"


@pytest.mark.parametrize(("labels", "yes"), [(["relevant"], 0), (["no", "yes"], 1)])
def test_one_label_or_a_yes_ranks(labels: list[str], yes: int, tmp_path: Path) -> None:
    model = classifier(len(labels), id2label={str(i): x for i, x in enumerate(labels)})
    with LLM(str(tiny.write_hf(model, tmp_path)), **OPTIONS) as llm:
        (scored,) = llm.score("one", "two")
        assert scored.outputs.method == "classifier"
        (probs,) = llm.classify(scored.prompt_token_ids)
        assert scored.outputs.score == probs.outputs.probs[yes]


def test_what_the_file_says(tmp_path: Path) -> None:
    facts = model_facts(load_model(str(tiny.write_hf(classifier(2), tmp_path / "a")))).vectors
    assert (facts.labels, facts.writes) == (("LABEL_0", "LABEL_1"), False)
    plain = model_facts(load_model(str(tiny.write_hf(tiny.llama(), tmp_path / "b")))).vectors
    assert (plain.labels, plain.writes) == ((), True)
    broken = classifier(2)
    broken.tensors["score.weight"] = tiny.uniform("score", (2, 63), 1.0)
    with pytest.raises(ModelError, match=r"score.weight is \(2, 63\), expected \[labels, 64\]"):
        model_facts(load_model(str(tiny.write_hf(broken, tmp_path / "c"))))


def test_a_model_without_a_head_has_no_labels(tmp_path: Path) -> None:
    with (
        LLM(str(tiny.write_hf(tiny.llama(), tmp_path)), **OPTIONS) as llm,
        pytest.raises(RequestError, match="no classifier head"),
    ):
        llm.classify("x")


def test_over_http(tmp_path: Path) -> None:
    model = classifier(2, id2label={"0": "no", "1": "yes"})
    folder = tiny.write_hf(model, tmp_path)
    engine = {"max_model_len": 512, "threads": 1, "dtype": "float32", "kv_memory": "16MiB"}
    with LLM(str(folder), **OPTIONS) as llm:
        probs = [output.outputs.probs for output in llm.classify(TEXTS)]
        scores = [output.outputs.score for output in llm.score("one", TEXTS)]
    with running_server(folder, executor="cpu", engine=engine) as server:
        told = server.post("/v1/classify", {"input": TEXTS}).json()
        assert [item["probs"] for item in told["data"]] == probs
        names = [("no", "yes")[each.index(max(each))] for each in probs]
        assert [item["label"] for item in told["data"]] == names
        assert told["data"][0]["num_classes"] == 2
        ranked = server.post("/v1/score", {"text_1": "one", "text_2": TEXTS}).json()
        assert ranked["method"] == "classifier"
        assert [item["score"] for item in ranked["data"]] == scores
        refused = server.post("/v1/completions", {"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
