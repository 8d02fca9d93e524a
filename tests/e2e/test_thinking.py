"""How long a model reasons: budgets, and an end that is asked for while it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import test_batches as batches
from tests.e2e.harness import MODEL, Server, running_server, wait_until
from tests.e2e.test_files import official
from tests.e2e.test_tools import CHAT, MESSAGES, THINKS, ask
from tests.e2e.toy_model import write_toy_model

CONTROL = CHAT + "/control"
FREE = {"temperature": 1.0, "max_tokens": 80}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_toy_model(tmp_path_factory.mktemp("thinker"), template=THINKS)
    with running_server(folder) as server:
        yield server


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget_tokens"])
def test_a_budget_ends_reasoning(thinker: Server, name: str) -> None:
    answer = ask(thinker, {**FREE, name: 12})
    message = answer["choices"][0]["message"]
    n = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert message["reasoning"] and 12 <= n <= 12 + 3 + len("</think>")
    assert message["content"]
    unlimited = ask(thinker, {**FREE, name: -1})["choices"][0]["message"]
    assert not unlimited["content"]
    assert unlimited["reasoning"].startswith(message["reasoning"].rstrip("\ufffd"))


@pytest.mark.parametrize("killed", ["behind its content", "at once"])
def test_an_end_that_was_asked_for_outlives_the_server(tmp_path: Path, killed: str) -> None:
    """A stored chat goes on as it was told, with the content that followed its reasoning; also
    where the engine had not said yet where that ends."""
    folder = write_toy_model(tmp_path / "model", {"seconds": 0.02}, template=THINKS)
    body = {"messages": MESSAGES, "max_tokens": 300, "ignore_eos": True, "seed": 2, "store": True}
    asked = {"model": MODEL, **body, "stream": True, "reasoning_control": True}
    state, name, reasoning = str(tmp_path / "state"), "", ""
    with (
        running_server(folder, state_dir=state) as server,
        server.http.stream("POST", server.url + CHAT, json=asked) as stream,
    ):
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            said = json.loads(line[6:])
            delta = said["choices"][0]["delta"]
            reasoning += delta.get("reasoning") or ""
            if not name and reasoning:
                name = said["id"]
                assert server.post(CONTROL, {"id": name, "action": "reasoning_end"}).is_success
            if delta.get("content") or (name and killed == "at once"):
                break
        server.process.kill()
    with running_server(folder, state_dir=state) as server:
        path = f"{CHAT}/{name}"
        wait_until(lambda: server.get(path).status_code == 200)
        message = server.get(path).json()["choices"][0]["message"]
    assert message["reasoning"].startswith(reasoning) and len(message["content"]) > 50
    assert killed == "at once" or message["reasoning"] == reasoning


def test_a_batch_counts_reasoning(thinker: Server) -> None:
    told = 0
    with official(thinker) as client:
        for url, asked in (
            (CHAT, {"messages": MESSAGES, "max_tokens": 9}),
            ("/v1/responses", {"input": "x", "max_output_tokens": 9}),
        ):
            body = {"model": MODEL, "seed": 2, **asked}
            line = {"custom_id": "one", "method": "POST", "url": url, "body": body}
            done = batches.wait(client, batches.begin(client, [line], url))
            (said,) = batches.read(client, done.output_file_id).values()
            usage = said["response"]["body"]["usage"]
            details = usage.get("completion_tokens_details") or usage["output_tokens_details"]
            assert done.usage
            assert done.usage.output_tokens_details.reasoning_tokens == details["reasoning_tokens"]
            told += details["reasoning_tokens"]
    assert told


def test_a_message_stands_before_the_end(thinker: Server) -> None:
    fields = {**FREE, "thinking_token_budget": 12, "reasoning_budget_message": "\nEnough."}
    answer = ask(thinker, fields)
    message = answer["choices"][0]["message"]
    plain = ask(thinker, {**FREE, "thinking_token_budget": 12})["choices"][0]["message"]
    assert message["reasoning"] == plain["reasoning"] + "\nEnough."
    assert message["content"]
    told = ask(thinker, {**fields, "reasoning_format": "none"})["choices"][0]["message"]
    assert "\nEnough.</think>" in told["content"] and "reasoning" not in told


def test_a_structure_follows(thinker: Server) -> None:
    for budget in (0, 7):
        fields = {**FREE, "thinking_token_budget": budget, "guided_choice": ["yes", "no"]}
        (choice,) = ask(thinker, fields)["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] in ("yes", "no")
        assert bool(choice["message"].get("reasoning")) == bool(budget)


def test_what_goes_on_is_not_reasoned_about(thinker: Server) -> None:
    """A structure begins at once behind content that is there, and behind the end of reasoning
    that was begun."""
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    for seed, begun in product(range(3), ("Well: ", "<think>\nhm", "A <think> opens: ")):
        said = [*MESSAGES, {"role": "assistant", "content": begun}]
        fields = {"messages": said, "guided_choice": ["yes", "no"], "seed": seed, **goes_on}
        answer = ask(thinker, {**fields, "max_tokens": 200, "thinking_token_budget": 7})
        message = answer["choices"][0]["message"]
        assert message["content"] in ("yes", "no")
        assert bool(message.get("reasoning")) == begun.startswith("<think>")


def test_messages_and_responses(thinker: Server) -> None:
    body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 80, "seed": 2}
    asked = {**body, "thinking": {"type": "enabled", "budget_tokens": 9}}
    answer = thinker.post("/v1/messages", asked).json()
    kinds = [block["type"] for block in answer["content"]]
    assert kinds == ["thinking", "text"]
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] >= 9
    hidden = {**asked, "thinking": {**asked["thinking"], "display": "omitted"}}
    (text,) = thinker.post("/v1/messages", hidden).json()["content"]
    assert text == answer["content"][1]
    off = {**body, "thinking": {"type": "disabled"}}
    assert [x["type"] for x in thinker.post("/v1/messages", off).json()["content"]] == ["text"]
    made = {"input": "hello", "max_output_tokens": 80, "thinking_token_budget": 9, "seed": 2}
    output = thinker.post("/v1/responses", made).json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]


@pytest.mark.parametrize("interval", [1, 4])
def test_fewer_pieces_tell_the_same(thinker: Server, interval: int) -> None:
    more = {"seed": 2, "thinking_token_budget": 9, "stream": True, "stream_interval": interval}
    asked = {"messages": MESSAGES, "max_tokens": 40, **more, "logprobs": True}
    usage = {"stream_options": {"include_usage": True}}
    events = data_of(thinker.post(CHAT, {**asked, **usage}).text)
    details = events[-1]["usage"]["completion_tokens_details"]
    assert details == ask(thinker, {**asked, "stream": False})["usage"]["completion_tokens_details"]
    made = {"input": "hello", "max_output_tokens": 40, **more}
    told = {"include": ["message.output_text.logprobs"]}
    *_, last = data_of(thinker.post("/v1/responses", {**made, **told}).text)
    whole = thinker.post("/v1/responses", {**made, **told, "stream": False}).json()
    assert contents_of(last["response"]) == contents_of(whole)
    assert last["response"]["usage"] == whole["usage"]


def contents_of(response: Any) -> list[Any]:
    return [item["content"] for item in response["output"]]


def data_of(stream: str) -> list[Any]:
    """The JSON of its events."""
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line[:5] == "data:"]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_no_thinking(thinker: Server) -> None:
    fields = {**FREE, "enable_thinking": False, "thinking_token_budget": 5}
    message = ask(thinker, fields)["choices"][0]["message"]
    assert message["content"] and "reasoning" not in message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"thinking_budget_tokens": 2**40}, "thinking_budget_tokens"),
        ({"thinking_token_budget": 1, "thinking_budget_tokens": 2}, "thinking_token_budget"),
    ],
)
def test_refusals(thinker: Server, fields: dict[str, Any], param: str) -> None:
    answer = thinker.post(CHAT, {"messages": MESSAGES, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_model_that_does_not_reason_says_so(toy: Server) -> None:
    answer = ask(toy, {"thinking_token_budget": 5, "max_tokens": 5})
    assert "knows no reasoning" in answer["warnings"][0]


def test_its_end_is_asked_for(thinker: Server) -> None:
    """As soon as it has begun: the answer ends its reasoning, and goes on."""
    body = {"messages": MESSAGES, "stream": True, "seed": 2, "max_tokens": 3900, "ignore_eos": True}
    asked = {"model": MODEL, **body, "reasoning_control": True}
    found = {"reasoning": "", "content": ""}
    answer_id = ""
    with thinker.http.stream("POST", thinker.url + CHAT, json=asked) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event["choices"]:
                for key in found:
                    found[key] += choice["delta"].get(key) or ""
            if not answer_id and found["reasoning"]:
                answer_id = event["id"]
                told = thinker.post(CONTROL, {"id": answer_id, "action": "reasoning_end"})
                assert told.status_code == 200 and told.json()["success"], told.text
    assert found["reasoning"] and found["content"]
    over = thinker.post(CONTROL, {"id": answer_id, "action": "reasoning_end"})
    assert over.status_code == 400
    other = thinker.post(CONTROL, {"id": "chatcmpl-0", "action": "reasoning_end"})
    assert other.status_code == 404
    assert thinker.post(CONTROL, {"id": answer_id, "action": "x"}).status_code == 400
