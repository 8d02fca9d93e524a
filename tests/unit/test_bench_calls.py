"""Calls of BFCL and answers under schemas, as the harnesses beside other servers judge them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.peers import calls, grammars
from bench.peers.asking import Said, read
from bench.peers.bfcl import Entry, as_schema, entries, is_alike, is_right, wrong
from bench.peers.calls import judged
from bench.peers.grammars import Part, body, outcomes, rates, summary
from bench.peers.jumps import saved
from bench.peers.servers import PeerServer
from bench.schemas.cases import Case

TRUTH = [{"f_x": {"a": [1], "b": ["", 2.0], "c": ["New York", "NYC"]}}]


def _call(name: str, **arguments: Any) -> tuple[str, str]:
    return name, json.dumps(arguments)


@pytest.mark.parametrize(
    ("calls", "is_found"),
    [
        ([_call("f_x", a=1, c="new york")], True),
        ([_call("f_x", a=1, b=2, c="NYC")], True),
        ([_call("f_x", a=1)], False),
        ([_call("f_x", a=True, c="NYC")], False),
        ([_call("f_x", a=1, c="NYC", d=0)], False),
        ([_call("g", a=1, c="NYC")], False),
        ([_call("f_x", a=1, c="NYC"), _call("f_x", a=1, c="NYC")], False),
        ([("f_x", "{")], False),
        ([], False),
    ],
)
def test_a_call_is_right_with_a_listed_value_for_each_parameter(
    calls: list[tuple[str, str]], is_found: bool
) -> None:
    assert is_right(calls, TRUTH) is is_found


def test_calls_are_right_in_any_order() -> None:
    truth = [{"f": {"a": [1]}}, {"f": {"a": [2]}}]
    assert is_right([_call("f", a=2), _call("f", a=1)], truth)
    assert not is_right([_call("f", a=2), _call("f", a=2)], truth)


def test_lists_and_objects_are_alike_item_by_item() -> None:
    assert is_alike([1, "a-b"], [1.0, "AB"])
    assert not is_alike([1], [1, 2])
    assert is_alike({"a": 1}, {"a": [1, 2], "b": [""]})
    assert not is_alike({"a": 3}, {"a": [1, 2]})


def test_types_are_said_in_the_words_of_json_schema() -> None:
    given = {"type": "dict", "properties": {"type": {"type": "any"}, "b": {"type": "float"}}}
    said = {"type": "object", "properties": {"type": {}, "b": {"type": "number"}}}
    assert as_schema(given) == said


def test_entries_are_spread_over_their_file_and_named_without_dots(tmp_path: Path) -> None:
    folder = tmp_path / "bfcl_eval/data"
    (folder / "possible_answer").mkdir(parents=True)
    tool = {"name": "m.f", "description": "d", "parameters": {"type": "dict", "properties": {}}}
    asked = [{"id": str(i), "question": [[{"role": "user"}]], "function": [tool]} for i in range(9)]
    truths = [{"id": str(i), "ground_truth": [{"m.f": {"a": [i]}}]} for i in range(9)]
    (folder / "BFCL_v4_multiple.json").write_text("\n".join(map(json.dumps, asked)))
    (folder / "possible_answer/BFCL_v4_multiple.json").write_text(
        "\n".join(map(json.dumps, truths))
    )
    found = entries(tmp_path, "multiple", 3)
    assert [one.id for one in found] == ["0", "3", "6"]
    assert found[1].truth == [{"m_f": {"a": [3]}}]
    assert found[1].tools[0]["function"]["name"] == "m_f"
    said = [
        Said(calls=(("m_f", "{}"),), finish="tool_calls"),
        Said(calls=(("m_f", "[]"),), finish="tool_calls"),
        Said(calls=(("m_f", "{"),), finish="length"),
    ]
    told = judged(found, said)
    assert (told["finished"], told["valid_share"], told["right_share"]) == (2, 0.5, 0)
    assert (list(told["faults"]), told["not_right"]) == (["3"], ["0", "3", "6"])
    assert judged(found[2:], said[2:])["valid_share"] is None
    assert wrong(("g", "{}"), found[0].tools) == "no tool is called 'g'"


def test_calls_go_on_behind_the_answers_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    call = Said(calls=(("f", "{}"),), finish="tool_calls")

    def ask_all(bodies: list[object], streams: int, one: object) -> tuple[list[Said], float]:
        asked.append(len(bodies))
        failed = Said(error="503: no") if sum(asked) == 25 else call
        return [*[call] * (len(bodies) - 1), failed], 0.0

    @contextmanager
    def running(self: PeerServer) -> Iterator[None]:
        yield

    monkeypatch.setattr(calls, "ask_all", ask_all)
    monkeypatch.setattr(PeerServer, "running", running)
    some = [Entry(str(i), [], [], [{"f": {}}]) for i in range(30)]
    path, server = tmp_path / "part.json", PeerServer("s", "1", ())
    monkeypatch.setattr(calls, "PIECE", 20)
    for n, n_right in ((25, 24), (30, 30), (30, 30)):
        part = calls.Part(path, "a model")
        told = calls.measure(server, read, {"multiple": some[:n]}, "required", part)["multiple"]
        assert (told["asked"], told["right_share"], len(told["failed"])) == (
            n,
            round(n_right / n, 4),
            n - n_right,
        )
    assert asked == [20, 5, 6]
    assert calls.Part(path, "another").of(server) == {}


def test_what_jumps_save_is_said_of_steps_and_of_time() -> None:
    def turn(off: float, on: float, n_on: float) -> dict[str, Any]:
        seconds, steps = {"off": off, "on": on}, {"off": 100.0, "on": n_on}
        return {"seconds": seconds, "steps": steps, "is_same": True}

    told = saved([turn(20.0, 6.0, 50.0), turn(10.0, 6.0, 50.0), turn(6.0, 6.0, 50.0)])
    assert (told["faster"], told["saved_as_time"], told["is_same"]) == (1.667, 0.8, True)
    assert saved([turn(1.0, 1.0, 100.0)])["saved_as_time"] is None


def test_answers_under_a_schema_are_judged_when_they_are_finished() -> None:
    case = Case("c", {"type": "integer"}, ())
    said = [Said("1", finish="stop"), Said('"', finish="length"), Said("{}", finish="stop")]
    told = outcomes([case] * 4, [*said, Said(error="500: no")])
    assert (told["finished"], told["invalid"], told["failed"]) == (2, 1, ["500: no"])
    assert list(told["faults"]) == ["c"]


def test_what_schemas_lose_is_of_the_same_number_of_tokens() -> None:
    case = Case("c", {"type": "integer"}, ())
    assert body(case, 5, is_held=False)["ignore_eos"]
    assert body(case, 5, is_held=True)["response_format"]["json_schema"]["schema"] == case.schema
    told = rates([Said(n_tokens=30)], 2.0, [Said(n_tokens=30)], 1.5)
    assert (told["tokens_per_second"], told["lost"]) == (15.0, 0.25)


def test_the_first_engine_is_held_against_the_best_of_the_others() -> None:
    def engine(name: str, rate: float) -> dict[str, Any]:
        point = {"tokens_per_second": rate, "free_tokens_per_second": rate, "lost": 0.0}
        points = [{**point, "invalid": 1, "finished": 2}] * 2
        return {"name": name, "turns": [{"points": points}] * 3}

    one, _ = summary([engine("a", 30.0), engine("b", 10.0), engine("c", 20.0)])
    assert (one["over_best"], one["b"]["invalid"]) == (1.5, 3)
    assert summary([engine("a", 30.0)])[0]["over_best"] is None


def test_an_answer_is_its_text_its_calls_and_its_length() -> None:
    message = {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    choice = {"message": message, "finish_reason": "tool_calls"}
    said = read({"choices": [choice], "usage": {"completion_tokens": 3}})
    assert said == Said("", (("f", "{}"),), "tool_calls", 3)


def test_a_comparison_goes_on_where_it_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refusals(server: PeerServer, cases: object) -> dict[str, str]:
        asked.append(server.version)
        return {"a": "400"}

    monkeypatch.setattr(grammars, "refusals", refusals)
    path, first, later = tmp_path / "part.json", *(PeerServer("s", x, ()) for x in "12")
    part = Part(path, "three schemas")
    part.of(first, [])["turns"].append({"points": []})
    part.keep()
    assert Part(path, "three schemas").of(first, [])["turns"] == [{"points": []}]
    assert Part(path, "three schemas").of(later, [])["turns"] == []
    assert Part(path, "four schemas").of(first, [])["turns"] == []
    assert asked == ["1", "2", "1"]
