"""Judging schemas of others: cases, verdicts, and answers that are written on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bench.schemas.__main__ import counts
from bench.schemas.cases import Case, Instance, sample_cases, spread, suite_cases
from bench.schemas.finished import ROUND, Answers, Written, judged, seed_of, told, write_answers
from bench.schemas.timing import histogram, measure
from bench.schemas.validity import fault
from bench.schemas.verdict import OTHER, judge
from kvasir.grammar.vocabulary import Vocabulary
from kvasir.offline.llm import LLM
from tests.byte_grammar import byte_tokens

A = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}


def case(schema: object, valid: list[object], invalid: list[object]) -> Case:
    instances = [Instance(value, True, "") for value in valid]
    return Case("it", schema, (*instances, *(Instance(value, False, "") for value in invalid)))


def test_reasons() -> None:
    values: list[object] = [{"a": 1, "b": "x"}, {"b": "x", "a": 1}, {"a": 1.0}]
    verdict = judge(case(A, values, [{"a": "x"}]))
    assert [why for _, why in verdict.rejected] == ["order of properties", "`1.0` for 1"]
    assert verdict.taken == ()
    date = judge(case({"type": "string", "format": "date"}, ["x"], []))
    assert [why for _, why in date.rejected] == ["asserted format"]
    control = judge(case({"type": "string", "pattern": r"^\s$"}, ["\v"], []))
    assert [why for _, why in control.rejected] == ["one spelling of a character"]
    wrong = judge(case({"type": "null"}, [3], [None]))
    assert [why for _, why in wrong.rejected] == [OTHER]
    assert len(wrong.taken) == 1


def test_counts() -> None:
    judged_ones = [
        judge(case({"type": "array", "uniqueItems": True}, [[1]], [])),
        judge(case({"type": "string", "format": "iri"}, [], ["no iri"])),
        judge(case({"type": "null"}, [None], [3])),
        judge(case(False, [], [3])),
    ]
    found = counts(judged_ones)
    assert found["accepted_share"] == 0.5
    assert found["refused"] == {"uniqueItems": 1, "a schema is a JSON object": 1}
    assert found["instances"] == 3
    assert found["invalid_taken"] == {"not asserted": 1}


def test_cases_of_files(tmp_path: Path) -> None:
    tests = [{"description": "one", "data": 1, "valid": True}]
    whole = [{"description": "d", "schema": {"type": "integer"}, "tests": tests}]
    (tmp_path / "draft7" / "optional").mkdir(parents=True)
    (tmp_path / "draft7" / "optional" / "x.json").write_text(json.dumps(whole))
    found = list(suite_cases(tmp_path, "draft7"))
    assert [(one.name, one.description) for one in found] == [("optional/x", "d")]
    assert found[0].schema["$schema"].startswith("http://json-schema.org/draft-07")
    line = json.dumps({"id": "i", "schema": {}, "tests": tests})
    with gzip.open(tmp_path / "s.gz", "wt") as file:
        file.write(line + "\n")
    assert list(sample_cases(tmp_path / "s.gz")) == [Case("i", {}, (Instance(1, True, "one"),))]


def test_the_same_part_each_time() -> None:
    cases = [Case(str(i), {}, ()) for i in range(10)]
    assert [one.name for one in spread(cases, 3)] == ["0", "3", "6"]
    assert spread(cases, None) == cases
    assert len({seed_of(one.name) for one in cases}) == 10


def test_answers_go_on_where_they_ended(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    Answers(path).add([Written("a", finish="stop"), Written("b", refused="why")])
    with path.open("ab") as file:
        file.write(b'{"id": "c", "fin')
    again = Answers(path)
    cases = [Case(name, {}, ()) for name in "abcd"]
    assert [one.name for one in again.left_of(cases)] == ["c", "d"]
    again.add([Written("c", finish="length")])
    assert [one.id for one in Answers(path).all] == ["a", "b", "c"]


def test_answers_are_asked_for_in_rounds(tmp_path: Path) -> None:
    asked: list[int] = []

    def chat(conversations: list[Any], params: list[Any], **_: object) -> list[Any]:
        asked.append(len(conversations))
        one = SimpleNamespace(text="1", finish_reason="stop", token_ids=[1])
        return [SimpleNamespace(outputs=[one]) for _ in params]

    schemas = [{"type": "integer"}, {"not": {"type": "string", "minLength": 3}}, {"enum": [1, 2]}]
    cases = [Case(str(i), schemas[i % 3], ()) for i in range(6)]
    answers, said = Answers(tmp_path / "answers.jsonl"), list[int]()
    llm = cast(LLM, SimpleNamespace(chat=chat))
    write_answers(llm, byte_tokens(), cases, answers, (8, 1), lambda: said.append(len(answers.all)))
    assert (asked, said) == ([3, 1], [ROUND, 6])
    found = told(answers.all)
    assert (found["schemas"], found["finished"], found["valid"]) == (6, 4, 4)


def test_what_is_finished_is_judged() -> None:
    one = Case("it", A, ())
    written = [
        judged(one, '{"a":1}', "stop", 5),
        judged(one, '{"a":"x"}', "stop", 5),
        judged(one, '{"a"', "stop", 5),
        judged(one, '{"a"', "length", 5),
        Written("it", refused="why"),
    ]
    assert [found.fault is None for found in written] == [True, False, False, True, True]
    found = told(written)
    assert (found["finished"], found["valid"], found["accepted_share"]) == (3, 1, 0.8)
    assert found["outcomes"] == {"length": 1, "refused": 1, "stop": 3}


def test_another_implementation_says_why() -> None:
    assert fault({"type": "integer"}, 1) is None
    assert fault({"type": "integer"}, "x") == "'x' is not of type 'integer'"
    assert fault({"$schema": "http://json-schema.org/draft-04/schema#", "enum": [1]}, 1) is None


def test_masks_are_timed() -> None:
    encode = lambda text: list(text.encode())  # noqa: E731
    bytes_alone = [*(bytes([i]) for i in range(256)), b""]
    vocabulary = Vocabulary(bytes_alone, frozenset({256}), (256,), encode)
    times = measure([case(A, [{"a": 1}], []), case(False, [], [])], vocabulary, 257)
    assert (times.n_refused, len(times.compile), len(times.cached)) == (1, 1, 1)
    assert len(times.masks) == len('{"a": 1}') + 1
    found = times.told()["mask_seconds"]
    assert found["p50"] <= found["p99"] <= found["max"]


def test_histogram() -> None:
    found = histogram([1e-6] * 98 + [1e-3, 2.0])
    assert (found["count"], found["p50"], found["p99"], found["max"]) == (100, 1e-6, 2.0, 2.0)
    assert found["up_to"]["0.001"] == 99
    assert histogram([]) == {"count": 0}
