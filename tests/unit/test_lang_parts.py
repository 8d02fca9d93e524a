"""The parts of programs: forms, scores, turns of a template, cut tokens, traces."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from kvasir.core.errors import RequestError
from kvasir.lang.calls import Counts
from kvasir.lang.expressions import Role
from kvasir.lang.forms import form_of
from kvasir.lang.http import JsonServer
from kvasir.lang.scoring import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from kvasir.lang.stopping import ProgramTimeout, Stop
from kvasir.lang.tokens import whole
from kvasir.lang.trace import CallRecord, Trace
from kvasir.lang.turns import Message, TemplateTurns


class Point:
    """As a pydantic model."""

    def __init__(self, x: int) -> None:
        self.x = x

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}

    @classmethod
    def model_validate_json(cls, text: str) -> Point:
        return cls(json.loads(text)["x"])


def form(**asked: Any) -> Any:
    return form_of(**{"regex": None, "json_schema": None, "grammar": None, "dtype": None} | asked)


def test_forms_have_values() -> None:
    assert form(dtype=int).read("-12") == -12
    assert form(dtype=float).read("1.5") == 1.5
    assert [form(dtype=bool).read(text) for text in ("True", "False")] == [True, False]
    assert form(dtype=str).outputs is None
    assert form(json_schema=Point).read('{"x": 3}').x == 3
    assert form(dtype=Point).outputs.json == Point.model_json_schema()
    assert form(json_schema='{"type": "null"}').outputs.json == '{"type": "null"}'
    assert form(json_schema={"type": "array"}).read("[1]") == [1]
    with pytest.raises(TypeError, match="use int, float, bool, str or a pydantic type"):
        form(dtype=list)


GIVEN = ((-1.0, -3.0), (-2.0,), (-1.0, -2.0, -4.5))


def best(scores: list[float]) -> int:
    return scores.index(max(scores))


def test_choices_are_weighed_in_three_ways() -> None:
    assert token_length_normalized.scores(GIVEN, ()) == [-2.0, -2.0, -2.5]
    # the first and the third begin likeliest; of these the third goes on likelier
    assert best(greedy_token_selection.scores(GIVEN, ())) == 2
    # one that has ended goes on with its mean
    assert best(greedy_token_selection.scores(((-1.0,), (-1.0, -3.0)), ())) == 0
    alone = ((-1.0, -3.0), (-6.0,), (-1.0, -2.0, -4.5))
    assert unconditional_likelihood_normalized.scores(GIVEN, alone) == [0.0, 4.0, 0.0]


def test_a_stop_string_may_cut_a_token() -> None:
    # tokens "ab", "c\n", "d": the text before the line feed is "abc"
    assert whole((0, 2, 4), 3) == (1, 2)
    # tokens "ab", "c", "\n"
    assert whole((0, 2, 3), 3) == (2, 3)
    # a character of two tokens begins where both do
    assert whole((0, 1, 1), 1) == (1, 1)
    assert whole((0, 2), 0) == (0, 0)


def chatml(messages: Any, begins_answer: bool) -> str:
    said = "".join(f"<{m['role']}>{m['content']}</>" for m in messages)
    return "<s>" + said + ("<assistant>" if begins_answer else "")


def folding(messages: Any, begins_answer: bool) -> str:
    """A system turn is a part of the next one, as in templates of Mistral and Gemma."""
    text, before = "<s>", ""
    for message in messages:
        if message["role"] == "system":
            before = message["content"] + "\n\n"
            continue
        text += f"[{before}{message['content']}]"
        before = ""
    assert not before, "a system turn alone"
    return text


def pieces(render: Callable[[Any, bool], str], *roles: Role) -> list[str]:
    turns, found = TemplateTurns(), []
    for role in roles:
        turns, text = turns.open(role, render)
        found.append(text)
        turns = turns.close()
    return found


def test_templates_write_turn_by_turn() -> None:
    assert pieces(chatml, "system", "user", "assistant", "user", "assistant") == [
        *("<s><system>", "</><user>", "</><assistant>", "</><user>", "</><assistant>")
    ]
    assert pieces(folding, "system", "user", "assistant", "user") == [*("<s>[", "\n\n", "]", "][")]


def test_turns_that_a_template_writes_elsewhere_are_refused() -> None:
    def last_only(messages: list[Message], begins_answer: bool) -> str:
        return messages[-1]["content"]

    with pytest.raises(RequestError, match="does not write a turn of user where it stands"):
        pieces(last_only, "user", "user")
    with pytest.raises(RequestError, match="does not begin with a turn of assistant"):
        pieces(chatml, "assistant")
    with pytest.raises(RequestError, match="a turn of user begins inside one of system"):
        TemplateTurns(("system",), True).open("user", chatml)


def test_a_trace_adds_up() -> None:
    trace = Trace()
    trace.add(CallRecord("b", "gen", (0, 1), Counts(30, 20, 5), 10.5, 10.75))
    trace.add(CallRecord("a", "gen", (), Counts(20, 0, 5), 10.0, 10.5))
    assert (trace.n_computed, trace.n_cached) == (30, 20)
    assert [record.name for record in trace.records] == ["a", "b"]
    assert trace.text().splitlines()[1:] == [
        "a                    gen    0                     20       0        20       5"
        "       0.0     500.0",
        "b                    gen    0.0.1                 30      20        10       5"
        "     500.0     250.0",
        "all                                               50      20        30      10",
    ]
    assert '"ts":500000,"dur":250000,"pid":0,"tid":"0.0.1"' in trace.chrome()


class Dripping(BaseHTTPRequestHandler):
    """A server whose stream goes on for two seconds, and then breaks off."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            for _ in range(40):
                self.wfile.write(b"data: {}\n\n")
                time.sleep(0.05)

    def log_message(self, *said: object) -> None:
        """Nobody reads it."""


def test_a_stream_that_goes_on_ends_with_its_program() -> None:
    """However soon each of its events follows the last."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        http = JsonServer(f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(ProgramTimeout):
            list(http.events("/v1/completions", {}, Stop(0.3)))
    finally:
        server.shutdown()
        server.server_close()
