"""Every dialect over HTTP, on the toy model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.harness import MODEL, Server, exchange, head

TALK = [{"role": "user", "content": "hi"}]
GREEDY = {"temperature": 0}


def lines(reply: Any) -> list[Any]:
    return [json.loads(line) for line in reply.text.splitlines() if line]


def events(reply: Any) -> list[Any]:
    assert reply.headers["content-type"].startswith("text/event-stream")
    data = [x.removeprefix("data: ") for x in reply.text.splitlines() if x.startswith("data: ")]
    return [json.loads(x) for x in data if x != "[DONE]"]


def test_all_say_the_same(toy: Server) -> None:
    chat = toy.post("/v1/chat/completions", {"messages": TALK, "max_tokens": 8, **GREEDY}).json()
    text = chat["choices"][0]["message"]["content"]
    asked = {"max_output_tokens": 8, **GREEDY}
    response = toy.post("/v1/responses", {"input": "hi", **asked}).json()
    assert response["output"][0]["content"][0]["text"] == text
    stream = events(toy.post("/v1/responses", {"input": "hi", "stream": True, **asked}))
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert "".join(x["delta"] for x in stream if "delta" in x["type"]) == text
    message = toy.post("/v1/messages", {"messages": TALK, "max_tokens": 8, **GREEDY}).json()
    assert message["content"][0]["text"] == text
    options = {"temperature": 0, "num_predict": 8, "top_k": 0, "top_p": 1}
    for path, body in (("chat", {"messages": TALK}), ("generate", {"prompt": "hi"})):
        said = lines(toy.post(f"/api/{path}", {**body, "options": options}))
        pieces = [x["message"]["content"] if path == "chat" else x["response"] for x in said]
        assert "".join(pieces) == text


def test_counts_are_those_of_answers(toy: Server) -> None:
    chat = toy.post("/v1/chat/completions", {"messages": TALK, "max_tokens": 1}).json()
    n = chat["usage"]["prompt_tokens"]
    for path, body in (
        ("/v1/chat/completions/input_tokens", {"messages": TALK}),
        ("/v1/responses/input_tokens", {"input": "hi"}),
        ("/v1/messages/count_tokens", {"messages": TALK}),
    ):
        assert toy.post(path, body).json()["input_tokens"] == n


def test_errors_have_the_form_of_their_dialect(toy: Server) -> None:
    wrong = {"model": "none"}
    openai = toy.post("/v1/responses", {"input": "hi", **wrong})
    assert (openai.status_code, openai.json()["error"]["code"]) == (404, "model_not_found")
    anthropic = toy.post("/v1/messages", {"messages": TALK, "max_tokens": 1, **wrong})
    assert anthropic.status_code == 404
    assert anthropic.json()["error"]["type"] == "not_found_error"
    ollama = toy.post("/api/chat", {"messages": TALK, **wrong})
    assert ollama.status_code == 404 and ollama.json().keys() == {"error"}
    long = [{"role": "user", "content": "x" * 5000}]
    for path, body in (
        ("/v1/chat/completions", {"messages": long}),
        ("/v1/responses", {"input": "x" * 5000}),
        ("/v1/messages", {"messages": long, "max_tokens": 1}),
        ("/api/chat", {"messages": long}),
    ):
        reply = toy.post(path, body)
        assert reply.status_code == 400 and "5019" in reply.text and "4096" in reply.text


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps", "/api/version"])
def test_what_ollama_clients_ask(toy: Server, path: str) -> None:
    answer = toy.get(path).json()
    if path == "/api/version":
        assert answer["version"]
        return
    (model,) = answer["models"]
    assert (model["name"], model["details"]["format"]) == (toy.model, "safetensors")
    assert model["size"] > 0 and model["digest"]


def test_a_card_of_ollama(toy: Server) -> None:
    card = toy.post("/api/show", {}).json()
    assert card["capabilities"] == ["completion"] and "im_start" in card["template"]
    assert card["model_info"]["llama.context_length"] == 4096
    assert toy.post("/api/show", {"model": "none"}).status_code == 404


def test_peers_say_the_same(toy: Server) -> None:
    body = {"prompt": "hi", "max_tokens": 8, **GREEDY}
    text = toy.post("/v1/completions", body).json()["choices"][0]["text"]
    llama = {"prompt": "hi", "n_predict": 8, "temperature": 0}
    assert toy.post("/completion", llama).json()["content"] == text
    pieces = events(toy.post("/completion", {**llama, "stream": True}))
    assert "".join(piece["content"] for piece in pieces) == text
    tgi = {"inputs": "hi", "parameters": {"max_new_tokens": 8}}
    assert toy.post("/generate", tgi).json() == {"generated_text": text}
    reply = toy.post("/generate_stream", tgi)
    tokens = [json.loads(x[5:]) for x in reply.text.splitlines() if x.startswith("data:")]
    assert "".join(token["token"]["text"] for token in tokens) == text
    assert tokens[-1]["generated_text"] == text
    assert toy.post("/invocations", body).json()["choices"][0]["text"] == text
    assert toy.post("/vertex", {"instances": [tgi]}).json() == {"predictions": [text]}
    path = f"/v2/models/{toy.model}"
    generate = {"text_input": "hi", "parameters": {"max_tokens": 8, **GREEDY}}
    assert toy.post(f"{path}/generate", generate).json()["text_output"] == text
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hi"]}
    infer = {"inputs": [tensor], "parameters": {"max_tokens": 8, **GREEDY}}
    assert toy.post(f"{path}/infer", infer).json()["outputs"][0]["data"] == [text]


def test_what_the_model_would_see(toy: Server) -> None:
    seen = toy.post("/v1/chat/completions/render", {"messages": TALK}).json()
    shown = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert seen["prompts"] == [shown] and len(seen["prompt_token_ids"][0]) == 21
    assert toy.post("/v1/completions/render", {"prompt": ["a", "b"]}).json()[
        "prompt_token_ids"
    ] == [
        [97],
        [98],
    ]
    assert toy.post("/apply-template", {"messages": TALK}).json() == {"prompt": shown}


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/props", "default_generation_settings"),
        ("/info", "max_total_tokens"),
        ("/ping", "status"),
        ("/v2", "extensions"),
        ("/v2/health/live", "live"),
        ("/v2/health/ready", "ready"),
        ("/v2/models/toy", "inputs"),
        ("/v2/models/toy/ready", "ready"),
        ("/tokenizer_info", "special_tokens"),
        ("/server_info", "max_model_len"),
        ("/load", "server_load"),
        ("/v1/loads", "loads"),
    ],
)
def test_what_clients_of_others_ask(toy: Server, path: str, key: str) -> None:
    reply = toy.get(path)
    assert reply.status_code == 200 and key in reply.json()


def test_slots_say_nothing_of_what_is_asked(toy: Server) -> None:
    slots = toy.get("/slots").json()
    assert {frozenset(slot) for slot in slots} == {frozenset({"id", "n_ctx", "is_processing"})}


def test_the_server_lists_its_routes(toy: Server) -> None:
    routes = toy.get("/").json()["routes"]
    assert routes["POST /v1/responses"] == "inference" and routes["GET /health"] == "public"
    document = toy.get("/openapi.json").json()
    paths = {route.partition(" ")[2].replace(":path", "") for route in routes}
    assert paths | {"/", "/openapi.json"} == document["paths"].keys()


def test_json_of_ollama_needs_no_type_and_pages_are_refused_all_the_same(toy: Server) -> None:
    body = json.dumps({"model": toy.model, "messages": TALK, "stream": False}).encode()
    curl = "Content-Type: application/x-www-form-urlencoded"
    for fields, status in (
        ((), 200),
        ((curl,), 200),
        (("Content-Type: text/plain",), 415),
        ((curl, "Origin: https://evil.example"), 403),
        ((curl, "Sec-Fetch-Site: cross-site"), 403),
    ):
        length = f"Content-Length: {len(body)}"
        reply = exchange(toy, head("POST", "/api/chat", *fields, length) + body)
        assert reply is not None and reply.status == status


def test_num_ctx_bounds_prompt_and_answer_together(toy: Server) -> None:
    body: dict[str, Any] = {"prompt": "hello there my friend", "stream": False}
    n_prompt = toy.post("/api/generate", body).json()["prompt_eval_count"]
    body["options"] = {"num_ctx": n_prompt + 5, "seed": 1}
    answer = toy.post("/api/generate", body).json()
    assert (answer["eval_count"], answer["done_reason"]) == (5, "length")
    body["options"]["num_predict"] = 6
    assert toy.post("/api/generate", body).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "x", "stream": True, "foo": 1}),
        ("/generate_stream", {"inputs": "x", "parameters": {"foo": 1}}),
        (
            f"/v2/models/{MODEL}/infer",
            {
                "inputs": [
                    {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"]}
                ],
                "foo": 1,
            },
        ),
        ("/api/show", {"model": MODEL, "foo": 1}),
        ("/api/embeddings", {"prompt": "x", "foo": 1}),
        ("/apply-template", {"messages": TALK, "foo": 1}),
        ("/tokenize", {"messages": TALK, "foo": 1}),
        ("/v1/chat/completions/render", {"messages": TALK, "foo": 1}),
        ("/v1/completions/render", {"prompt": "x", "foo": 1}),
        ("/v1/chat/completions/input_tokens", {"messages": TALK, "foo": 1}),
        ("/v1/messages/count_tokens", {"messages": TALK, "foo": 1}),
        ("/v1/responses/input_tokens", {"input": "x", "foo": 1}),
    ],
)
def test_r38_an_unknown_field_is_told(toy: Server, path: str, body: Any) -> None:
    answer = toy.post(path, body)
    told = [line for line in answer.text.splitlines() if line.startswith(("data:", "{"))]
    last = json.loads(told[-1].removeprefix("data:"))
    assert last["warnings"] == ["unknown field 'foo' was ignored"], answer.text
