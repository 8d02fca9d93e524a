"""Tools and reasoning of Responses, and answers that are parsed, through the official client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests import tool_templates
from tests.e2e.harness import MODEL, PATIENCE, Server, running_server
from tests.e2e.test_tools import MESSAGES, THINKS, TOOLS, client_of
from tests.e2e.toy_model import write_toy_model


@pytest.fixture(scope="module")
def tooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_toy_model(tmp_path_factory.mktemp("tools"), template=tool_templates.HERMES)
    with running_server(folder) as server:
        yield server


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_toy_model(tmp_path_factory.mktemp("thinker"), template=THINKS)
    with running_server(folder) as server:
        yield server


FLAT: list[Any] = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]


def test_responses(tooled: Server) -> None:
    """Called, streamed, and gone on with: by id, and with all items sent again."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "input": "hello",
        "tools": FLAT,
        "tool_choice": {"type": "function", "name": "now"},
        "parallel_tool_calls": False,
        "max_output_tokens": 300,
        "extra_body": {"seed": 3},
    }
    with client_of(tooled) as client:
        first = client.responses.create(**asked)
        (call,) = first.output
        assert call.type == "function_call" and first.status == "completed"
        assert (call.name, json.loads(call.arguments)) == ("now", {})
        with client.responses.stream(
            **{k: v for k, v in asked.items() if k != "max_output_tokens"}, max_output_tokens=300
        ) as stream:
            events = list(stream)
            last = stream.get_final_response()
        (streamed,) = last.output
        assert streamed.type == "function_call" and streamed.arguments == call.arguments
        parts = [x.delta for x in events if x.type == "response.function_call_arguments.delta"]
        assert "".join(parts) == call.arguments
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        more: dict[str, Any] = {
            "model": MODEL,
            "tools": FLAT,
            "max_output_tokens": 9,
            "temperature": 0,
        }
        chained = client.responses.create(previous_response_id=first.id, input=[result], **more)
        user = {"role": "user", "content": "hello"}
        items = [user, call.model_dump(exclude_none=True), result]
        told = client.responses.create(input=items, **more)
        assert chained.output_text == told.output_text and chained.output_text
        assert chained.usage is not None and told.usage is not None
        assert chained.usage.input_tokens == told.usage.input_tokens
        shown = client.responses.input_items.list(chained.id, order="asc").data
        assert [item.type for item in shown] == ["function_call_output"]


def test_responses_in_the_background(tooled: Server) -> None:
    with client_of(tooled) as client:
        asked: dict[str, Any] = {
            "model": MODEL,
            "input": "hello",
            "tools": FLAT,
            "tool_choice": "required",
            "max_output_tokens": 300,
            "extra_body": {"seed": 3},
        }
        begun = client.responses.create(**asked, background=True)
        deadline = time.monotonic() + PATIENCE
        while (found := client.responses.retrieve(begun.id)).status in ("queued", "in_progress"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        now = client.responses.create(**asked)
        said = [item.model_dump(exclude={"id"}) for item in now.output]
        assert [item.model_dump(exclude={"id"}) for item in found.output] == said
        events = list(client.responses.retrieve(begun.id, stream=True))
        assert events[-1].response.output == found.output  # type: ignore[union-attr]


def test_responses_that_think(thinker: Server) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "hello", "max_output_tokens": 40}
    with client_of(thinker) as client:
        found = client.responses.create(**asked, temperature=0)
        assert [item.type for item in found.output] == ["reasoning"]
        assert found.usage is not None
        assert found.usage.output_tokens_details.reasoning_tokens == found.usage.output_tokens
        plain = client.responses.create(**asked, reasoning={"effort": "none"})
        assert [item.type for item in plain.output] == ["message"]
        assert plain.reasoning is not None and plain.reasoning.effort == "none"


class Weather(pydantic.BaseModel):
    unit: Literal["c", "f"]
    n: Literal[1, 22]


def test_what_the_official_client_parses(tooled: Server) -> None:
    """Into types of its own: answers of both protocols, calls, and calls of a stream."""
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}
    more: dict[str, Any] = {"max_tokens": 300, "seed": 3}
    calling = {"tools": [openai.pydantic_function_tool(Weather)], "tool_choice": "required"}
    with client_of(tooled) as client:
        chats = client.chat.completions
        said = chats.parse(**asked, **more, response_format=Weather).choices[0].message
        assert isinstance(said.parsed, Weather)
        response = client.responses.parse(
            model=MODEL, input="hello", text_format=Weather, max_output_tokens=300
        )
        assert isinstance(response.output_parsed, Weather)
        called = chats.parse(**asked, **more, **calling, parallel_tool_calls=False)
        (call,) = called.choices[0].message.tool_calls or ()
        assert isinstance(call.function.parsed_arguments, Weather)
        with chats.stream(**asked, **more, **calling, parallel_tool_calls=False) as stream:
            done = [x for x in stream if x.type == "tool_calls.function.arguments.done"]
            final = stream.get_final_completion()
    assert [x.parsed_arguments for x in done] == [call.function.parsed_arguments]
    (again,) = final.choices[0].message.tool_calls or ()
    assert again.function.parsed_arguments == call.function.parsed_arguments
