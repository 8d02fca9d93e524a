"""Batches through the official client, on a real server process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from tests.e2e.conftest import StartServer
from tests.e2e.harness import MODEL, PATIENCE, Server, n_known
from tests.e2e.test_files import official

Line = dict[str, Any]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def client(toy: Server) -> Iterator[openai.OpenAI]:
    with official(toy) as client:
        yield client


def text_line(i: int, **more: Any) -> Line:
    body = {"model": MODEL, "prompt": f"line {i % 7} goes on", "max_tokens": 8, "seed": i, **more}
    return {"custom_id": f"id-{i}", "method": "POST", "url": TEXT, "body": body}


def upload(client: openai.OpenAI, lines: list[Line] | bytes) -> str:
    data = lines if isinstance(lines, bytes) else jsonl(lines)
    return client.files.create(file=data, purpose="batch").id


def jsonl(lines: list[Line]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def begin(
    client: openai.OpenAI, lines: list[Line] | bytes, endpoint: str = TEXT, window: str = "24h"
) -> Batch:
    return client.batches.create(
        input_file_id=upload(client, lines),
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window=window,  # type: ignore[arg-type]
    )


def wait(
    client: openai.OpenAI, batch: Batch, until: Callable[[Batch], bool] | None = None
) -> Batch:
    """As long as it gets on."""
    ends = ("completed", "failed", "expired", "cancelled")
    deadline = time.monotonic() + PATIENCE
    while not (until or (lambda found: found.status in ends))(batch):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        before, batch = batch, client.batches.retrieve(batch.id)
        if batch.request_counts != before.request_counts:
            deadline = time.monotonic() + PATIENCE
    return batch


def read(client: openai.OpenAI, file_id: str | None) -> dict[str, Line]:
    if file_id is None:
        return {}
    found = [json.loads(line) for line in client.files.content(file_id).read().splitlines()]
    assert len({line["custom_id"] for line in found}) == len(found)
    return {line["custom_id"]: line for line in found}


def test_a_batch_answers_as_requests_do(client: openai.OpenAI) -> None:
    lines = [text_line(i) for i in range(40)]
    lines[3]["body"] |= {"n": 2, "logprobs": 2, "echo": True}
    lines[4]["body"] |= {"stop": "a", "max_tokens": 60, "prompt": ["one", "two"]}
    lines[5]["body"] |= {"n": 2, "use_beam_search": True, "seed": None}
    batch = client.batches.create(
        input_file_id=upload(client, lines),
        endpoint=TEXT,
        completion_window="24h",
        metadata={"of": "test"},
    )
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", TEXT)
    assert batch.expires_at == batch.created_at + 24 * 3600
    batch = wait(client, batch)
    assert (batch.status, batch.model, batch.metadata) == ("completed", MODEL, {"of": "test"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (40, 40, 0)
    assert batch.in_progress_at and batch.finalizing_at and batch.completed_at
    assert batch.error_file_id is None
    answers = read(client, batch.output_file_id)
    assert set(answers) == {line["custom_id"] for line in lines}
    n_output = 0
    for line in lines:
        found = answers[line["custom_id"]]["response"]
        assert found["status_code"] == 200 and answers[line["custom_id"]]["error"] is None
        alone = (
            client.completions.create(**line["body"])
            if "use_beam_search" not in line["body"]
            else client.completions.create(**_extra(line["body"]))
        )
        assert found["body"]["choices"] == alone.model_dump(mode="json")["choices"] or _choices(
            found["body"]
        ) == _choices(alone.model_dump())
        n_output += found["body"]["usage"]["completion_tokens"]
    assert batch.usage is not None and batch.usage.output_tokens == n_output
    file = client.files.retrieve(batch.output_file_id or "")
    assert file.purpose == "batch_output" and file.expires_at


def _extra(body: Line) -> Line:
    beams = {"use_beam_search": body["use_beam_search"]}
    rest = {key: value for key, value in body.items() if key not in beams and value is not None}
    return {**rest, "extra_body": beams}


def _choices(body: Any) -> list[tuple[str, str]]:
    return [(choice["text"], choice["finish_reason"]) for choice in body["choices"]]


def test_chat_lines(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    lines = [
        {"custom_id": str(i), "method": "POST", "url": CHAT, "body": {**body, "seed": i}}
        for i in range(5)
    ]
    answers = read(client, wait(client, begin(client, lines, CHAT)).output_file_id)
    for i in range(5):
        alone = client.chat.completions.create(**body, seed=i)
        found = answers[str(i)]["response"]["body"]
        assert found["choices"][0]["message"]["content"] == alone.choices[0].message.content
        assert found["id"].startswith("chatcmpl-")
        assert answers[str(i)]["response"]["request_id"] == found["id"]


def test_vectors_and_responses_of_lines(client: openai.OpenAI) -> None:
    for endpoint, prefix in (("/v1/embeddings", "embd-"), ("/v1/responses", "resp_")):
        lines = [
            {"custom_id": str(i), "method": "POST", "url": endpoint, "body": body}
            for i in range(3)
            if (body := {"model": MODEL, "input": f"text {i}", "seed": i})
        ]
        done = wait(client, begin(client, lines, endpoint))
        assert done.status == "completed" and done.usage and done.usage.input_tokens > 0
        for name, line in read(client, done.output_file_id).items():
            found = line["response"]["body"]
            alone = client.post(
                endpoint.removeprefix("/v1"), body=lines[int(name)]["body"], cast_to=object
            )
            assert found["id"].startswith(prefix) and isinstance(alone, dict)
            assert _said(found) == _said(alone)


def _said(answer: Line) -> Any:
    if "data" in answer:
        return answer["data"]
    return [(item["status"], item["content"]) for item in answer["output"]]


def test_every_line_is_checked_before_any_is_computed(client: openai.OpenAI) -> None:
    bad: list[tuple[bytes | Line, str, str | None]] = [
        (b"{not json}\n", "invalid_json_line", None),
        (b'["a list"]\n', "invalid_json_line", None),
        ({**text_line(0), "custom_id": 7}, "invalid_custom_id", "custom_id"),
        ({**text_line(1), "custom_id": "fine"}, "duplicate_custom_id", "custom_id"),
        ({**text_line(2), "method": "GET"}, "invalid_method", "method"),
        ({**text_line(3), "url": CHAT}, "invalid_url", "url"),
        ({**text_line(4), "body": "text"}, "invalid_body", "body"),
        ({**text_line(5), "more": 1}, "unknown_field", None),
        (text_line(6, model="none"), "model_not_found", "body.model"),
        (text_line(7, temperature=-1), "invalid_value", "body.temperature"),
        (text_line(8, prompt="x" * 5000), "context_length_exceeded", "body.prompt"),
        (text_line(9, stream=True), "invalid_value", "body.stream"),
        (text_line(10, deadline_ms=5), "invalid_value", "body.deadline_ms"),
    ]
    data = jsonl([{**text_line(99), "custom_id": "fine"}]) + b"\n"
    data += b"".join(line if isinstance(line, bytes) else jsonl([line]) for line, *_ in bad)
    before = client.files.list(purpose="batch_output").data
    batch = wait(client, begin(client, data))
    assert batch.status == "failed" and batch.failed_at and batch.errors and batch.errors.data
    found = [(error.line, error.code, error.param) for error in batch.errors.data]
    assert found == [(i, code, param) for i, (_, code, param) in enumerate(bad, start=3)]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert batch.request_counts and batch.request_counts.total == 0
    assert client.files.list(purpose="batch_output").data == before


def test_empty_and_overlong_inputs(client: openai.OpenAI) -> None:
    for data, code in ((b"", "empty_file"), (b"\n \n", "empty_file")):
        batch = wait(client, begin(client, data))
        assert batch.status == "failed" and batch.errors and batch.errors.data
        assert [error.code for error in batch.errors.data] == [code]
    many = b"{}\n" * 500
    batch = wait(client, begin(client, many))
    assert batch.errors and batch.errors.data and len(batch.errors.data) == 100


def test_what_is_asked_is_checked(client: openai.OpenAI) -> None:
    file_id = upload(client, [text_line(0)])
    other = client.files.create(file=b"x", purpose="user_data").id
    good: Any = {"input_file_id": file_id, "endpoint": TEXT, "completion_window": "24h"}
    for more, param in (
        ({"endpoint": "/v1/images/edits"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"input_file_id": other}, "input_file_id"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.batches.create(**{**good, **more})
        assert caught.value.param == param
    with pytest.raises(openai.NotFoundError):
        client.batches.create(**{**good, "input_file_id": "file-none"})
    for ask in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            ask("batch-none")


def test_a_deleted_input_is_still_computed(client: openai.OpenAI) -> None:
    batch = begin(client, [text_line(i) for i in range(20)])
    client.files.delete(batch.input_file_id)
    assert wait(client, batch).status == "completed"


def slow(**more: Any) -> dict[str, Any]:
    return {"faults": {"seconds": 0.01}, **more}


def test_cancelled_with_what_was_answered(server: StartServer) -> None:
    with server(**slow(batch_lines=4)) as running:
        client = official(running)
        batch = begin(client, [text_line(i, ignore_eos=True) for i in range(2000)])
        wait(client, batch, lambda x: bool(x.request_counts and x.request_counts.completed > 8))
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        done = wait(client, batch)
        assert done.status == "cancelled" and done.cancelled_at and done.cancelling_at
        answers, errors = read(client, done.output_file_id), read(client, done.error_file_id)
        assert done.request_counts and done.request_counts.completed == len(answers) > 8
        assert not answers.keys() & errors.keys() and len(answers) + len(errors) == 2000
        assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
        assert client.batches.cancel(batch.id).status == "cancelled"
        running.wait_idle()
        ended = wait(client, begin(client, [text_line(0)]))
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(ended.id)


def test_expired_with_what_was_answered(server: StartServer) -> None:
    with server(**slow(batch_lines=4)) as running:
        client = official(running)
        lines = [text_line(i, ignore_eos=True, max_tokens=20) for i in range(200)]
        batch = begin(client, lines, window="6s")  # of 10 s of steps alone
        done = wait(client, batch)
        assert done.status == "expired" and done.expired_at
        answers, errors = read(client, done.output_file_id), read(client, done.error_file_id)
        assert answers and len(answers) + len(errors) == 200
        assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}


def test_one_that_waits_behind_others_ends_in_time(server: StartServer) -> None:
    with server(**slow(batch_lines=2)) as running:
        client = official(running)
        lines = [text_line(i, ignore_eos=True, max_tokens=2000) for i in range(4)]
        before = [begin(client, lines) for _ in range(2)]
        wait(client, before[1], lambda x: x.status == "in_progress")
        cancelled, expired = begin(client, lines), begin(client, lines, window="1s")
        client.batches.cancel(cancelled.id)
        assert wait(client, cancelled).status == "cancelled"
        done = wait(client, expired)
        assert done.status == "expired" and done.expired_at and not done.error_file_id
        assert done.request_counts and not done.request_counts.total
        for batch in before:
            assert client.batches.retrieve(batch.id).status == "in_progress"


def test_never_more_lines_than_asked_run(server: StartServer) -> None:
    with server(**slow(batch_lines=3)) as running:
        client = official(running)
        batches = [begin(client, [text_line(i) for i in range(60)]) for _ in range(3)]
        most = 0.0
        while any(client.batches.retrieve(batch.id).status != "completed" for batch in batches):
            most = max(most, n_known(running))
        assert 0 < most <= 3


def test_failures_of_lines_are_theirs_alone(server: StartServer) -> None:
    with server(faults={"nonfinite": {"5": 2}}) as running:
        client = official(running)
        done = wait(client, begin(client, [text_line(i) for i in range(9)]))
        assert done.status == "completed" and done.request_counts
        assert (done.request_counts.completed, done.request_counts.failed) == (8, 1)
        (failed,) = read(client, done.error_file_id).values()
        assert failed["custom_id"] == "id-5" and failed["response"]["status_code"] == 500
        assert failed["response"]["body"]["error"]["code"] == "model_numerics"


def test_a_batch_outlives_the_server(server: StartServer, tmp_path: Path) -> None:
    """SIGTERM and kill -9: every line is answered once, and as it would have been."""
    state, lines = str(tmp_path / "state"), [text_line(i, seed=None) for i in range(300)]
    for line in lines:
        line["body"] = {k: v for k, v in line["body"].items() if v is not None}
    ids: list[str] = []
    for how in ("terminate", "kill", "wait"):
        with server(**slow(batch_lines=8, state_dir=state)) as running:
            client = official(running)
            if not ids:
                ids.append(begin(client, lines).id)
            batch = client.batches.retrieve(ids[0])
            if how == "wait":
                done = wait(client, batch)
                answers = read(client, done.output_file_id)
                break
            n = batch.request_counts.completed if batch.request_counts else 0
            wait(client, batch, lambda x, n=n: x.request_counts.completed > n + 20)  # type: ignore
            getattr(running.process, how)()
            running.process.wait(PATIENCE)
    assert done.status == "completed" and len(answers) == 300
    assert done.request_counts and done.request_counts.completed == 300
