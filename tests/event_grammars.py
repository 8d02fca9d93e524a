"""What the events of each dialect may be, in which order, and what they must say together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Story:
    """What was generated: the truth that the events tell."""

    text: str
    n_tokens: int
    finish: str | None
    """"stop" or "length"; None when it failed."""


def check_chat(events: Sequence[bytes], story: Story) -> None:
    check_choices(events, story, lambda choice: choice["delta"].get("content", ""))
    first = json.loads(data(events[0]))["choices"][0]["delta"]
    assert first == {"role": "assistant", "content": ""}


def check_completions(events: Sequence[bytes], story: Story) -> None:
    check_choices(events, story, lambda choice: choice["text"])


def check_choices(events: Sequence[bytes], story: Story, text_of: Callable[[Any], str]) -> None:
    *told, last = [data(event) for event in events]
    found = [json.loads(event) for event in told]
    choices = [event["choices"][0] for event in found]
    finishes = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    text = "".join(map(text_of, choices))
    assert len({(event["id"], event["created"], event["object"]) for event in found}) <= 1
    if story.finish is None:
        assert not finishes and json.loads(last).keys() == {"error"}
        assert story.text.startswith(text)
    else:
        assert finishes == [story.finish] and last == "[DONE]" and text == story.text


def check_responses(events: Sequence[bytes], story: Story) -> None:
    found = [json.loads(data(event)) for event in events]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for event, raw in zip(found, events, strict=True):
        assert raw.startswith(f"event: {event['type']}\n".encode())
    kinds = " ".join(event["type"].removeprefix("response.") for event in found)
    opening = "created in_progress output_item.added content_part.added( output_text.delta)*"
    closing = " output_text.done content_part.done output_item.done (completed|incomplete)"
    assert re.fullmatch(f"{opening}({closing}| failed)", kinds), kinds
    deltas = [event["delta"] for event in found if event["type"].endswith("text.delta")]
    response = found[-1]["response"]
    if story.finish is None:
        assert response["status"] == "failed" and response["error"]["code"] == "engine_down"
        assert story.text.startswith("".join(deltas))
        return
    status = "incomplete" if story.finish == "length" else "completed"
    text, part, item = (event for event in found[-4:-1])
    assert "".join(deltas) == story.text == text["text"] == part["part"]["text"]
    assert item["item"] == response["output"][0] and item["item"]["content"] == [part["part"]]
    assert response["status"] == item["item"]["status"] == status
    assert response["usage"]["output_tokens"] == story.n_tokens
    assert found[0]["response"].keys() == response.keys()


def check_messages(events: Sequence[bytes], story: Story) -> None:
    found = [json.loads(data(event)) for event in events]
    for event, raw in zip(found, events, strict=True):
        assert raw.startswith(f"event: {event['type']}\n".encode())
    kinds = " ".join(event["type"] for event in found)
    opening = "message_start content_block_start( content_block_delta)*"
    closing = " content_block_stop message_delta message_stop"
    assert re.fullmatch(f"{opening}({closing}| error)", kinds), kinds
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    text = "".join(delta["text"] for delta in deltas)
    assert all(delta["text"] for delta in deltas)
    if story.finish is None:
        assert story.text.startswith(text)
        return
    usage = found[-2]["usage"]
    assert text == story.text and usage["output_tokens"] == story.n_tokens
    assert usage["input_tokens"] == found[0]["message"]["usage"]["input_tokens"] > 0
    reason = {"stop": "end_turn", "length": "max_tokens"}[story.finish]
    assert found[-2]["delta"]["stop_reason"] == reason


def check_ollama(events: Sequence[bytes], story: Story) -> None:
    assert all(event.endswith(b"\n") and event.count(b"\n") == 1 for event in events)
    *told, last = [json.loads(event) for event in events]
    assert all(event["done"] is False for event in told)
    text = "".join(event["message"]["content"] for event in told)
    if story.finish is None:
        assert last.keys() == {"error"} and story.text.startswith(text)
        return
    assert text == story.text
    assert (last["done"], last["done_reason"]) == (True, story.finish)
    assert last["eval_count"] == story.n_tokens


def check_llama_server(events: Sequence[bytes], story: Story) -> None:
    *told, last = [json.loads(data(event)) for event in events]
    assert all(event["stop"] is False for event in told)
    text = "".join(event["content"] for event in told)
    if story.finish is None:
        assert last.keys() == {"error"} and story.text.startswith(text)
        return
    assert text == story.text and last["stop"] is True
    assert last["tokens_predicted"] == story.n_tokens
    assert last["stop_type"] == {"stop": "eos", "length": "limit"}[story.finish]


def check_kserve(events: Sequence[bytes], story: Story) -> None:
    *told, last = [json.loads(data(event)) for event in events]
    text = "".join(event["text_output"] for event in told)
    if story.finish is None:
        assert last.keys() == {"error"} and story.text.startswith(text)
        return
    assert text == story.text and last["finish_reason"] == story.finish


def check_tgi(events: Sequence[bytes], story: Story) -> None:
    found = [json.loads(event.removeprefix(b"data:")) for event in events]
    told = [event for event in found if "token" in event]
    text = "".join(event["token"]["text"] for event in told)
    assert [event["index"] for event in told] == list(range(1, len(told) + 1))
    if story.finish is None:
        assert found[-1].keys() == {"error", "error_type"} and story.text.startswith(text)
        return
    assert text == story.text == told[-1]["generated_text"]
    assert all(event["details"] is None for event in told[:-1])
    assert told[-1]["details"]["generated_tokens"] == story.n_tokens == len(told)


def data(event: bytes) -> str:
    """Of one server-sent event."""
    assert event.endswith(b"\n\n")
    lines = event.decode().removesuffix("\n\n").split("\n")
    assert lines[-1].startswith("data: ") and len(lines) <= 2
    return lines[-1].removeprefix("data: ")
