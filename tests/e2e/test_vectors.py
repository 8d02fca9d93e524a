"""Vectors and what is made of them, over HTTP: official client, other dialects, bad requests."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.e2e.harness import MODEL, Server, connect, n_known, post_bytes, wait_until

TEXTS = ["once upon a time", "a", "there was " * 40, "once upon a time"]


@pytest.fixture(scope="module")
def client(native_toy: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=native_toy.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def floats(server: Server, texts: Any, **fields: Any) -> list[list[float]]:
    answer = server.post("/v1/embeddings", {"input": texts, **fields})
    assert answer.status_code == 200, answer.text
    return [item["embedding"] for item in answer.json()["data"]]


def test_the_official_client_gets_equal_numbers_in_both_forms(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "input": TEXTS}
    packed = client.embeddings.create(**asked)
    written = client.embeddings.create(**asked, encoding_format="float")
    assert [item.embedding for item in packed.data] == [item.embedding for item in written.data]
    assert [item.index for item in packed.data] == [0, 1, 2, 3]
    assert packed.object == "list"
    assert packed.usage.prompt_tokens == packed.usage.total_tokens == 16 + 1 + 400 + 16
    assert packed.data[0].embedding == packed.data[3].embedding
    for item in packed.data:
        assert math.isclose(math.fsum(x * x for x in item.embedding), 1.0, rel_tol=1e-6)


def test_base64_is_little_endian_f32(native_toy: Server) -> None:
    (written,) = floats(native_toy, "abc")
    (packed,) = floats(native_toy, "abc", encoding_format="base64")
    assert isinstance(packed, str)
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == written


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_forms_of_input_and_what_surrounds_them_change_nothing(
    native_toy: Server, pooling: str
) -> None:
    ids = [list(text.encode()) for text in TEXTS]
    expected = floats(native_toy, TEXTS, pooling=pooling)
    assert floats(native_toy, ids, pooling=pooling) == expected
    assert floats(native_toy, ids[2], pooling=pooling) == [expected[2]]
    with ThreadPoolExecutor(16) as threads:
        ask = lambda i: floats(native_toy, TEXTS[i % 3], pooling=pooling)  # noqa: E731
        talk = threads.submit(
            native_toy.post, "/v1/completions", {"prompt": "x", "max_tokens": 100, "seed": 1}
        )
        for i, found in enumerate(threads.map(ask, range(48))):
            assert found == [expected[i % 3]]
        assert talk.result().status_code == 200
    assert len({str(vector) for vector in expected}) == 3
    native_toy.wait_idle()


def test_the_answer_says_which_pooling_and_warns_of_cls(native_toy: Server) -> None:
    answer = native_toy.post("/v1/embeddings", {"input": "a"}).json()
    assert (answer["pooling"], answer["model"]) == ("last", MODEL)
    assert "warnings" not in answer
    warned = native_toy.post("/v1/embeddings", {"input": "a", "pooling": "cls"}).json()
    assert "sees no other" in warned["warnings"][0]


def test_what_is_too_long_is_refused_or_cut(native_toy: Server) -> None:
    limit = 4096
    long = "abcdefgh" * (limit // 8) + "xyz"
    refused = native_toy.post("/v1/embeddings", {"input": ["a", long]})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "4099" in error["message"]
    assert "4096" in error["message"]
    for fields, kept in (
        ({"truncate": True}, long[:limit]),
        ({"truncate": "END"}, long[:limit]),
        ({"truncate": "start"}, long[-limit:]),
        ({"truncate_prompt_tokens": -1}, long[-limit:]),
        ({"truncate_prompt_tokens": 5}, long[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, long[:5]),
    ):
        assert floats(native_toy, long, **fields) == floats(native_toy, kept), fields


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": ["a", ""]}, "input", "empty"),
        ({"input": ["a", 1]}, "input", "mixes"),
        ({"input": [[1, 999]]}, "input", "999"),
        ({"input": "a", "dimensions": 8}, "dimensions", "not trained to have them cut"),
        ({"input": "a", "dimensions": 0}, "dimensions", "not trained"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name", "it has none"),
        ({"input": "a", "pooling": "max"}, "pooling", "cls, mean, last"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "hex"),
        ({"input": "a", "truncate": "middle"}, "truncate", "middle"),
        ({"input": "a", "truncate": False, "truncate_prompt_tokens": 3}, "truncate", "contradict"),
        ({"input": "a", "truncation_side": "left"}, "truncation_side", "needs truncate"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"input": "a", "deadline_ms": 0}, "deadline_ms", "at least 1"),
        ({"input": "a", "embed_dtype": "int8"}, "embed_dtype", "not supported yet"),
        ({"input": "a", "task": "token_embed"}, "task", "not supported yet"),
        ({}, "input", "missing"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    toy: Server, fields: dict[str, Any], param: str, says: str
) -> None:
    answer = toy.post("/v1/embeddings", fields)
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert error["param"] == param
    assert says in error["message"]


def test_the_whole_length_is_no_cut(toy: Server) -> None:
    whole = floats(toy, "a")
    assert floats(toy, "a", dimensions=len(whole[0])) == whole


def test_pooled_vectors_are_as_the_model_gives_them(native_toy: Server) -> None:
    answer = native_toy.post("/pooling", {"input": "abc", "pooling": "mean"}).json()
    item = answer["data"][0]
    assert (item["object"], item["index"], answer["pooling"]) == ("pooling", 0, "mean")
    length = math.sqrt(math.fsum(x * x for x in item["data"]))
    assert not math.isclose(length, 1.0, rel_tol=1e-3)
    (unit,) = floats(native_toy, "abc", pooling="mean")
    assert np.allclose(np.array(item["data"]) / length, unit, rtol=1e-6)
    assert floats(native_toy, "abc", pooling="mean", normalize=False) == [item["data"]]


def test_llama_servers_embedding(native_toy: Server) -> None:
    expected = floats(native_toy, ["abc", "d"])
    answer = native_toy.post("/embedding", {"content": ["abc", "d"]}).json()
    assert answer == [{"index": i, "embedding": [x]} for i, x in enumerate(expected)]
    raw = native_toy.post("/embedding", {"input": "abc", "embd_normalize": -1}).json()
    assert raw[0]["embedding"] == floats(native_toy, "abc", normalize=False)
    refused = native_toy.post("/embedding", {"content": "abc", "embd_normalize": 0})
    assert refused.json()["error"]["param"] == "embd_normalize"


def test_ollamas_two_forms(native_toy: Server) -> None:
    expected = floats(native_toy, ["abc", "d"])
    answer = native_toy.post("/api/embed", {"input": ["abc", "d"]}).json()
    assert answer["embeddings"] == expected
    assert (answer["model"], answer["prompt_eval_count"]) == (MODEL, 4)
    assert answer["total_duration"] > 0
    old = native_toy.post("/api/embeddings", {"prompt": "abc"}).json()
    assert old == {"embedding": floats(native_toy, "abc", normalize=False)[0]}
    options = {"num_ctx": 4, "temperature": 0.5}
    tagged = {"input": "abcd", "options": options, "model": f"{MODEL}:latest"}
    warned = native_toy.post("/api/embed", tagged).json()
    assert warned["warnings"] == ["options.temperature means nothing to a vector"]
    assert native_toy.post("/api/embed", {**tagged, "input": "abcde"}).status_code == 400
    cut = native_toy.post("/api/embed", {**tagged, "input": "abcde", "truncate": True}).json()
    assert cut["embeddings"] == warned["embeddings"]
    refused = native_toy.post("/api/embed", {"input": "a", "dimensions": 3})
    assert refused.status_code == 400
    assert "not trained" in refused.json()["error"]


def rerank(server: Server, path: str = "/v1/rerank", **fields: Any) -> httpx.Response:
    asked = {"query": "once", "documents": ["upon", "once", "a time"], "method": "cosine"}
    return server.post(path, asked | fields)


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank", "/reranking"])
def test_reranking_by_cosine(native_toy: Server, path: str) -> None:
    answer = rerank(native_toy, path).json()
    vectors = [np.array(x) for x in floats(native_toy, ["once", "upon", "once", "a time"])]
    cosines = [float(vectors[0] @ vector) for vector in vectors[1:]]
    assert answer["method"] == "cosine"
    assert [x["index"] for x in answer["results"]] == sorted(range(3), key=lambda i: -cosines[i])
    assert answer["results"][0] == {"index": 1, "relevance_score": pytest.approx(1.0)}
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(cosines[result["index"]], abs=1e-5)
    assert answer["usage"]["total_tokens"] == 4 + 4 + 4 + 6


def test_fields_of_rerankers(native_toy: Server) -> None:
    documents = [{"text": "upon"}, "once"]
    answer = rerank(native_toy, documents=documents, top_n=1, return_documents=True).json()
    assert answer["results"] == [
        {"index": 1, "relevance_score": pytest.approx(1.0), "document": {"text": "once"}}
    ]
    body = {"query": "once", "texts": ["upon", "once"], "return_text": True, "method": "cosine"}
    told = native_toy.post("/rerank", body).json()
    assert [(x["index"], x["text"]) for x in told] == [(1, "once"), (0, "upon")]
    for fields, param in (
        ({"documents": []}, "documents"),
        ({"documents": [{"body": "x"}]}, "documents[0]"),
        ({"top_n": 0}, "top_n"),
        ({"method": "guess"}, "method"),
        ({"method": "classifier"}, "method"),
        ({"texts": ["a"]}, "texts"),
        ({"max_tokens_per_doc": 3}, "max_tokens_per_doc"),
    ):
        refused = rerank(native_toy, **fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), fields


def test_scores_of_pairs(native_toy: Server) -> None:
    def score(first: Any, second: Any) -> list[float]:
        body = {"text_1": first, "text_2": second, "method": "cosine"}
        answer = native_toy.post("/v1/score", body).json()
        return [item["score"] for item in answer["data"]]

    each = score("once", ["upon", "once"])
    assert each[1] == pytest.approx(1.0)
    assert score(["upon", "once"], "once") == pytest.approx(each)
    assert score(["once", "once"], ["upon", "once"]) == each
    body = {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}
    refused = native_toy.post("/score", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text_2")


def test_a_client_that_leaves_ends_its_vectors(native_toy: Server) -> None:
    before = native_toy.metric("kvasir_requests_cancelled_total")
    body = {"model": MODEL, "input": ["word " * 800] * 24}
    with connect(native_toy) as sock:
        sock.sendall(post_bytes("/v1/embeddings", json.dumps(body).encode()))
        wait_until(lambda: n_known(native_toy) > 0)
    wait_until(lambda: native_toy.metric("kvasir_requests_cancelled_total") == before + 1)
    native_toy.wait_idle()


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_labels_of_a_model_without_them_are_refused(toy: Server, path: str) -> None:
    refused = toy.post(path, {"input": "a"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert "no classifier head" in refused.json()["error"]["message"]
