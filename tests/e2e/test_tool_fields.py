"""Fields that stretch an answer, beside tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests import tool_templates
from tests.e2e.harness import MODEL, Server, running_server
from tests.e2e.test_tools import MESSAGES, TOOLS, ask, client_of
from tests.e2e.toy_model import write_toy_model


@pytest.fixture(scope="module", params=["CODER", "LLAMA"])
def tooled(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    template = getattr(tool_templates, request.param)
    folder = write_toy_model(tmp_path_factory.mktemp("tools"), template=template)
    with running_server(folder) as server:
        yield server


@pytest.mark.parametrize("late", [{"min_tokens": 100}, {"ignore_eos": True}])
def test_an_answer_ends_behind_its_last_call(tooled: Server, late: dict[str, Any]) -> None:
    """Text goes on as without tools; where nothing can follow a call, the answer ends."""
    one = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 120, **late}
    called = ask(tooled, {**one, "tool_choice": {"type": "function", "function": {"name": "now"}}})
    (found,) = called["choices"]
    assert (found["finish_reason"], len(found["message"]["tool_calls"])) == ("tool_calls", 1)
    assert called["usage"]["completion_tokens"] < 100
    said = "where nothing can follow a call, the answer ends, before min_tokens and ignore_eos"
    assert called["warnings"] == [said]
    for choice in ("auto", "none"):
        free = ask(tooled, {**one, "tool_choice": choice, "seed": 1})
        assert free["usage"]["completion_tokens"] >= 100
        assert free.get("warnings") == ([said] if choice == "auto" else None)
    assert "warnings" not in ask(tooled, {"tools": TOOLS, "max_tokens": 5})


def test_an_echo_stands_before_a_call(tooled: Server) -> None:
    """Whole and streamed alike."""
    begun = {"role": "assistant", "content": "So: "}
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [*MESSAGES, begun],
        "tools": TOOLS,
        "tool_choice": "required",
        "max_tokens": 300,
        "seed": 2,
        "extra_body": {
            "echo": True,
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    }
    url = tooled.url + "/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        (choice,) = client.chat.completions.create(**asked).choices
        assert choice.message.content == "So: " and choice.message.tool_calls
        stream = client.chat.completions.create(**asked, stream=True)
        deltas = [choice.delta.content or "" for event in stream for choice in event.choices]
    assert "".join(deltas) == "So: "


@pytest.mark.parametrize("n", range(1, 42, 4))
def test_a_required_call_that_is_cut_is_no_text(tooled: Server, n: int) -> None:
    """As with OpenAI: the answer ends with "length", and has what there is of the call."""
    fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": n, "seed": 1}
    (choice,) = ask(tooled, fields)["choices"]
    assert choice["finish_reason"] == "length" and not choice["message"]["content"]
    calls = choice["message"].get("tool_calls") or ()
    with client_of(tooled) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, **fields
        )
        told = [x for event in stream for x in event.choices]
    assert not any(x.delta.content for x in told) and told[-1].finish_reason == "length"
    written = [x.function for c in told for x in c.delta.tool_calls or ()]
    assert "".join(x.arguments or "" for x in written) == "".join(
        call["function"]["arguments"] for call in calls
    )
    assert [x.name for x in written if x.name] == [call["function"]["name"] for call in calls]
