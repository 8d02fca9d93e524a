"""Whatever a route answers is what the OpenAPI document says of it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from kvasir.serve.app import ROUTES
from kvasir.serve.openapi import PARAMETER
from tests.documented import STREAMS, Documented
from tests.e2e.conftest import StartServer
from tests.e2e.harness import MODEL, Server, wait_until

TALK = [{"role": "user", "content": "a question"}]
TEXT: dict[str, Any] = {"prompt": "a text", "max_tokens": 4}
TOKENS: dict[str, Any] = {"return_token_ids": True, "prompt_logprobs": 1, "return_metrics": True}
FULL: dict[str, Any] = {**TOKENS, "metadata": {"a": "b"}, "request_id": "mine", "odd": 1}
INFER = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a text"]}
PROBED = {"parameters": {"details": True, "top_n_tokens": 1, "max_new_tokens": 3}}

N_DRAWS = 8
"""One of a hundred tokens of the toy ends an answer."""
ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", TEXT),
    ("/v1/completions", {**TEXT, **FULL, "logprobs": 1, "echo": True, "n": 2}),
    ("/v1/completions/render", {"prompt": ["a", "b"]}),
    ("/v1/chat/completions", {"messages": TALK, "max_tokens": 4}),
    ("/v1/chat/completions", {"messages": TALK, "max_tokens": 4, **FULL, "logprobs": True}),
    ("/v1/chat/completions/render", {"messages": TALK}),
    ("/v1/chat/completions/input_tokens", {"messages": TALK}),
    ("/v1/responses", {"input": "a question", "max_output_tokens": 4}),
    ("/v1/responses", {"input": "a", "include": ["message.output_text.logprobs"], "odd": 1}),
    ("/v1/responses/input_tokens", {"input": "a question"}),
    ("/v1/messages", {"messages": TALK, "max_tokens": 4, "odd": 1}),
    ("/v1/messages/count_tokens", {"messages": TALK}),
    ("/api/generate", {"prompt": "a text", "stream": False, "options": {"num_predict": 4}}),
    ("/api/chat", {"messages": TALK, "stream": False, "options": {"num_predict": 4, "odd": 1}}),
    ("/api/show", {}),
    ("/api/embed", {"input": ["a", "b"]}),
    ("/api/embeddings", {"prompt": "a"}),
    ("/completion", {"prompt": "a text", "n_predict": 4, "n_probs": 2, "return_tokens": True}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 4}),
    ("/generate", {"inputs": "a text", **PROBED}),
    ("/generate_stream", {"inputs": "a text", **PROBED}),
    ("/v2/models/{model}/infer", {"inputs": [INFER]}),
    ("/v2/models/{model}/generate", {"text_input": "a text", "id": "mine"}),
    ("/v2/models/{model}/generate_stream", {"text_input": "a text"}),
    ("/invocations", {"messages": TALK, "max_tokens": 4}),
    ("/invocations", {"inputs": "a text"}),
    ("/vertex", {"instances": [{"inputs": "a text"}]}),
    ("/v1/embeddings", {"input": "a"}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64"}),
    ("/pooling", {"input": "a"}),
    ("/embedding", {"content": "a"}),
    *(
        (path, {"query": "a", "documents": ["b", "c"], "return_documents": True})
        for path in ("/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking")
    ),
    ("/rerank", {"query": "a", "texts": ["b", "c"]}),
    ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}),
    ("/score", {"text_1": "a", "text_2": "b"}),
    ("/v1/classify", {"input": "a"}),
    ("/classify", {"input": "a"}),
    ("/tokenize", {"prompt": "a text", "return_token_strs": True, "odd": 1}),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/apply-template", {"messages": TALK}),
)
REFUSED = ({}, {"model": 7}, {"model": "no-such-model"}, {"stream": "perhaps"})
THOUGHT = {"type": "reasoning_text", "text": "hm"}
BATCH, RESPONSE = "/v1/batches/{batch_id}", "/v1/responses/{response_id}"
CHAT, TALKS = "/v1/chat/completions/{completion_id}", "/v1/conversations"
WHOLE = ("echo", "prompt_logprobs")
"""What no stream tells, or not of several choices."""
TEXTS, CHATS = "/v1/completions", "/v1/chat/completions"
STREAMING = tuple(PARAMETER.sub(r"{\1}", each.path) for each in ROUTES if each.events)
KEPT = ("/v1/files", "/v1/batches", TALKS)
NEEDS_MODEL = ("/infill", "/v1/classify", "/classify")
"""The toy cannot: it has no markers of a middle and no labels."""


@pytest.fixture(scope="module")
def documented() -> Documented:
    return Documented()


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    model = {} if "{model}" in path else {"model": MODEL}
    return server.http.post(server.url + path.replace("{model}", MODEL), json={**model, **body})


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_what_is_asked_in_a_body(
    toy: Server, documented: Documented, path: str, body: dict[str, Any]
) -> None:
    reply = post(toy, path, body)
    documented.check("POST", path, reply)
    assert reply.status_code == (400 if path in NEEDS_MODEL else 200), reply.text
    for wrong in REFUSED:
        refused = toy.http.post(toy.url + path.replace("{model}", MODEL), json=wrong)
        documented.check("POST", path, refused)


@pytest.mark.parametrize(
    ("path", "body"),
    [(path, body) for path, body in ASKED if path in STREAMING and path not in NEEDS_MODEL],
)
def test_what_is_streamed(
    toy: Server, documented: Documented, path: str, body: dict[str, Any]
) -> None:
    """An answer that ends with its first token may be one event: then it is drawn again."""
    usage = {"stream_options": {"include_usage": True}} if path in (TEXTS, CHATS) else {}
    asked = {name: value for name, value in body.items() if name not in WHOLE}
    n_events = 1
    for _ in range(N_DRAWS):
        n_before = documented.n_events
        reply = post(toy, path, {**asked, **usage, "stream": True})
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"].partition(";")[0] in STREAMS
        documented.check("POST", path, reply)
        n_events = documented.n_events - n_before
        if n_events > 1:
            break
    assert n_events > 1


def test_what_is_not_streamed_says_so(documented: Documented) -> None:
    """Counts and prompts take the same bodies."""
    for path in ("/v1/chat/completions/input_tokens", "/v1/completions/render", "/v1/embeddings"):
        assert documented.event("POST", path) is None


def test_every_body_is_asked() -> None:
    posts = {PARAMETER.sub(r"{\1}", each.path) for each in ROUTES if each.method == "POST"}
    state = {path for path in posts if path.startswith((*KEPT, CHAT))}
    assert posts - state - {path for path, _ in ASKED} == {
        "/v1/responses/{response_id}/cancel",
        "/v1/chat/completions/control",  # of an answer that is on its way: test_thinking.py
        *("/open_session", "/close_session"),  # below
    }


def test_sessions(toy: Server, documented: Documented) -> None:
    def ask(path: str, body: dict[str, Any]) -> Any:
        reply = toy.http.post(toy.url + path, json=body)
        documented.check("POST", path, reply)
        assert reply.status_code == 200, reply.text
        return reply.json()

    name = ask("/open_session", {"capacity_of_str_len": 10})
    assert ask("/close_session", {"session_id": name})["closed"]


def test_what_is_looked_at(toy: Server, documented: Documented) -> None:
    answer = post(toy, "/v1/completions", {**TEXT, "n": 2}).json()
    names = {"{request_id}": answer["id"], "{model}": MODEL, "{model:path}": MODEL}
    for route in ROUTES:
        if route.method != "GET" or route.access == "state":
            continue
        target = route.path
        for name, value in names.items():
            target = target.replace(name, value)
        reply = toy.get(target)
        assert reply.status_code == 200, route.path
        documented.check("GET", PARAMETER.sub(r"{\1}", route.path), reply)


def test_what_is_kept(server: StartServer, documented: Documented) -> None:
    """Files, batches and responses."""
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    lines = json.dumps({**line, "body": {"model": MODEL, **TEXT}}).encode()
    with server() as ours:

        def ask(method: str, path: str, of: str = "", **more: Any) -> Any:
            target = path.replace(path[path.find("{") : path.find("}") + 1] or "{", of)
            reply = ours.http.request(method, ours.url + target, **more)
            documented.check(method, path, reply)
            assert reply.status_code == 200, reply.text
            return reply.json() if reply.headers["content-type"] == "application/json" else None

        form = {"purpose": "batch", "expires_after[anchor]": "created_at"}
        form["expires_after[seconds]"] = "3600"
        file = ask("POST", "/v1/files", files={"file": ("lines", lines)}, data=form)["id"]
        asked = {"input_file_id": file, "endpoint": line["url"], "completion_window": "24h"}
        batch = ask("POST", "/v1/batches", json={**asked, "metadata": {"a": "b"}})["id"]
        wait_until(lambda: ask("GET", BATCH, batch)["status"] == "completed")
        again = ask("POST", "/v1/batches", json=asked)["id"]
        cancelled = ours.http.post(f"{ours.url}/v1/batches/{again}/cancel")
        documented.check("POST", f"{BATCH}/cancel", cancelled)
        assert cancelled.status_code in (200, 409)  # it may have ended by itself
        for path in ("/v1/files", "/v1/batches"):
            ask("GET", path)
        ask("GET", "/v1/files/{file_id}", file)
        ask("GET", "/v1/files/{file_id}/content", file)
        ask("DELETE", "/v1/files/{file_id}", file)
        said = {"model": MODEL, "input": "a question", "background": True}
        response = ask("POST", "/v1/responses", json={**said, "max_output_tokens": 4})["id"]
        wait_until(lambda: ask("GET", RESPONSE, response)["status"] == "incomplete")
        ask("GET", RESPONSE, response, params={"stream": "true"})
        ask("GET", f"{RESPONSE}/input_items", response)
        ask("POST", f"{RESPONSE}/cancel", response)
        ask("DELETE", RESPONSE, response)


def test_what_is_kept_of_chats_and_conversations(toy: Server, documented: Documented) -> None:
    def ask(method: str, path: str, *of: str, **more: Any) -> Any:
        target = path
        for name in of:
            target = target.replace(target[target.find("{") : target.find("}") + 1], name, 1)
        reply = toy.http.request(method, toy.url + target, **more)
        documented.check(method, path, reply)
        assert reply.status_code == 200, reply.text
        return reply.json() if reply.headers["content-type"] == "application/json" else None

    said = {"model": MODEL, "messages": TALK, "max_tokens": 4, "store": True}
    chat = ask("POST", "/v1/chat/completions", json={**said, "logprobs": True})["id"]
    ask("GET", "/v1/chat/completions", params={"limit": "5", "metadata[a]": "b"})
    ask("GET", CHAT, chat)
    ask("GET", CHAT, chat, params={"stream": "true"})
    ask("GET", f"{CHAT}/messages", chat)
    ask("POST", CHAT, chat, json={"metadata": {"a": "b"}})
    assert ask("GET", "/v1/chat/completions", params={"metadata[a]": "b"})["data"]
    ask("DELETE", CHAT, chat)
    one, items = f"{TALKS}/{{conversation_id}}", f"{TALKS}/{{conversation_id}}/items"
    talk = ask("POST", TALKS, json={"items": TALK, "metadata": {"a": "b"}})["id"]
    answer = {"role": "assistant", "content": "an answer"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "x"}
    reason = {"type": "reasoning", "summary": [], "content": [THOUGHT]}
    ask("POST", items, talk, json={"items": [answer, *TALK, reason, call, result]})
    asked = {"model": MODEL, "input": "a", "max_output_tokens": 4, "conversation": talk}
    made = ask("POST", "/v1/responses", json=asked)["id"]
    ask("GET", f"{RESPONSE}/input_items", made)
    found = ask("GET", items, talk)["data"]
    assert len(found) == 8
    for item in found:
        ask("GET", f"{items}/{{item_id}}", talk, item["id"])
    ask("DELETE", f"{items}/{{item_id}}", talk, found[0]["id"])
    ask("GET", one, talk)
    ask("POST", one, talk, json={"metadata": None})
    ask("DELETE", one, talk)


def test_a_fault_outside_the_document_is_found(documented: Documented) -> None:
    """The checks themselves."""
    card = {"id": "a", "object": "model", "created": 1, "owned_by": "kvasir", "root": "a"}
    whole = {**card, "parent": None, "max_model_len": 8}
    path, get = "/v1/models/{model}", documented.told["paths"]["/v1/models/{model}"]["get"]
    schema = get["responses"]["200"]["content"]["application/json"]["schema"]
    assert documented.faults(schema, whole) == []
    assert documented.faults(schema, card)
    assert documented.faults(schema, {**whole, "more": 1})
    with pytest.raises(AssertionError):
        documented.check("GET", path, httpx.Response(200, json=card))
