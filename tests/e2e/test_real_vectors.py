"""Vectors and scores of the default model: over HTTP and offline the same numbers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvasir import LLM
from tests.e2e.asked import ask
from tests.e2e.harness import Server, n_known, running_server, wait_until
from tests.smollm2 import smollm2

MODEL = "smollm2"
SIZES = {"max_model_len": 512, "kv_memory": "128MiB"}
QUERY = "What is the capital of France?"
DOCUMENTS = [
    "Bananas are rich in potassium.",
    "Paris is the capital of France.",
    "A binary search tree keeps its keys in order.",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(smollm2(), executor="cpu", name=MODEL, engine=SIZES) as running:
        yield running


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(smollm2()), **SIZES, threads=1) as made:
        yield made


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors(server: Server, llm: LLM, pooling: str) -> None:
    answer = server.post("/v1/embeddings", {"input": DOCUMENTS, "pooling": pooling}).json()
    offline = llm.embed(DOCUMENTS, pooling=pooling)
    found = [item["embedding"] for item in answer["data"]]
    assert found == [output.outputs.embedding for output in offline]
    assert [len(vector) for vector in found] == [576] * 3
    again = server.post("/v1/embeddings", {"input": DOCUMENTS[1], "pooling": pooling}).json()
    assert again["data"][0]["embedding"] == found[1]


@pytest.mark.parametrize("fields", [{"method": "cosine", "pooling": "mean"}, {"method": "logits"}])
def test_the_document_that_answers_comes_first(
    server: Server, llm: LLM, fields: dict[str, str]
) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, **fields}
    answer = server.post("/v1/rerank", body).json()
    assert answer["method"] == fields["method"]
    assert answer["results"][0]["index"] == 1
    scores = {item["index"]: item["relevance_score"] for item in answer["results"]}
    offline = llm.score(QUERY, DOCUMENTS, **fields)
    assert [scores[i] for i in range(3)] == [output.outputs.score for output in offline]
    told = server.post("/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS, **fields}).json()
    assert [item["score"] for item in told["data"]] == [scores[i] for i in range(3)]


def test_a_model_that_follows_instructions_judges_by_itself(server: Server) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS}
    judged = server.post("/rerank", body).json()
    assert judged["method"] == "logits"
    told = {"instruct": "Given a question, find what is about food", **body}
    other = server.post("/rerank", told).json()
    assert other["results"] != judged["results"]
    for fields in ({"pooling": "mean"}, {"truncate": True}):
        assert server.post("/rerank", {**body, **fields}).json()["method"] == "cosine"
        refused = server.post("/rerank", {**body, **fields, "method": "logits"})
        assert refused.json()["error"]["param"] == "method"
    again = server.post("/rerank", body).json()
    assert again["results"] == judged["results"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_judgement_after_a_death(server: Server) -> None:
    """Killed while the judge reads; scores come from two rows of the language head."""
    documents = [f"{i}. " + DOCUMENTS[i % 3] * 20 for i in range(12)]
    asked = {"query": QUERY, "documents": documents, "method": "logits"}
    alone = ask(server, ("/v1/rerank", asked))
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(ask, server, ("/v1/rerank", {**asked, "cache_salt": "another"}))
        wait_until(lambda: n_known(server) > 0)
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert heard.result() == alone
    assert server.metric("kvasir_requests_replayed_total") > 0
