"""Stored responses through the official client, on a real server process."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.harness import MODEL, PATIENCE, Server
from tests.e2e.test_files import official

ASKED: Any = {"model": MODEL, "max_output_tokens": 24, "temperature": 0}
PATH = "/v1/responses"
DONE = ("completed", "incomplete")


@pytest.fixture
def client(toy: Server) -> Iterator[openai.OpenAI]:
    with official(toy) as client:
        yield client


def ended(client: openai.OpenAI, response_id: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while (found := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def gone(client: openai.OpenAI, response_id: str) -> bool:
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response_id)
    return True


def events_of(running: Server, response_id: str, more: str = "") -> bytes:
    path = f"{running.url}{PATH}/{response_id}?stream=true{more}"
    return httpx.get(path, timeout=PATIENCE, trust_env=False).content


def test_what_was_answered_is_kept_until_it_is_deleted(client: openai.OpenAI) -> None:
    made = client.responses.create(**ASKED, input="one", metadata={"of": "test"})
    assert made.store is True
    assert client.responses.retrieve(made.id).model_dump() == made.model_dump()
    *_, end = client.responses.create(**ASKED, input="one", stream=True)
    assert client.responses.retrieve(end.response.id).model_dump() == end.response.model_dump()
    client.responses.delete(made.id)
    assert gone(client, made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(made.id)
    other = client.responses.create(**ASKED, input="one", store=False)
    assert other.store is False and gone(client, other.id)


def test_a_chain_is_the_conversation(client: openai.OpenAI) -> None:
    first = client.responses.create(**ASKED, input="one", instructions="be brief")
    second = client.responses.create(**ASKED, input="two", previous_response_id=first.id)
    third = client.responses.create(
        **ASKED, input="three", previous_response_id=second.id, instructions="be long"
    )
    talk: Any = [
        {"role": "system", "content": "be long"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "three"},
    ]
    whole = client.responses.create(**ASKED, input=talk, store=False)
    assert third.output_text == whole.output_text
    assert third.usage and whole.usage and third.usage.input_tokens == whole.usage.input_tokens
    assert third.previous_response_id == second.id
    counted: Any = client.post(
        "/responses/input_tokens",
        body={**ASKED, "input": "two", "previous_response_id": first.id},
        cast_to=object,
    )
    assert second.usage and counted["input_tokens"] == second.usage.input_tokens
    client.responses.delete(second.id)
    again = client.responses.create(**ASKED, input="four", previous_response_id=third.id)
    assert again.status in DONE
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(**ASKED, input="three", previous_response_id=second.id)
    assert caught.value.param == "previous_response_id"


def test_input_items_come_in_pages(client: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": f"text {i}"} for i in range(5)]
    first = client.responses.create(**ASKED, input="before")
    made = client.responses.create(**ASKED, input=items, previous_response_id=first.id)
    listed = client.responses.input_items.list(made.id, order="asc", limit=2)
    texts = [item.content[0].text for item in listed]  # type: ignore[union-attr]
    assert texts == [f"text {i}" for i in range(5)]
    newest = client.responses.input_items.list(made.id).data[0]
    assert newest.content[0].text == "text 4"  # type: ignore[union-attr]
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_none")


def test_in_the_background_it_is_the_same_answer(toy: Server, client: openai.OpenAI) -> None:
    asked = {**ASKED, "input": "one", "include": ["message.output_text.logprobs"]}
    whole = client.responses.create(**asked)
    begun = client.responses.create(**asked, background=True)
    assert (begun.status, begun.background, begun.output) == ("queued", True, [])
    live = events_of(toy, begun.id)
    done = ended(client, begun.id)
    assert done.status in DONE and done.output_text == whole.output_text
    assert [item.content for item in done.output] == [item.content for item in whole.output]
    assert events_of(toy, begun.id) == live  # told from what is kept
    events = live.split(b"\n\n")[:-1]
    for number in (0, 3, len(events) - 2):
        rest = events_of(toy, begun.id, f"&starting_after={number}")
        assert rest.split(b"\n\n")[:-1] == events[number + 1 :]
    streamed = list(client.responses.create(**asked, background=True, stream=True))
    assert [event.sequence_number for event in streamed] == list(range(len(events)))
    assert streamed[-1].response.output_text == whole.output_text  # type: ignore[union-attr]
    same = client.responses.create(**ASKED, input="two", previous_response_id=begun.id)
    assert same.status in DONE


def test_what_is_asked_is_checked(client: openai.OpenAI) -> None:
    for more, param in (
        ({"store": False}, "background"),
        ({"extra_body": {"deadline_ms": 5}}, "deadline_ms"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**ASKED, input="one", background=True, **more)
        assert caught.value.param == param
    made = client.responses.create(**ASKED, input="one")
    with pytest.raises(openai.BadRequestError, match="background: true"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError, match="background: true"):
        list(client.responses.retrieve(made.id, stream=True))
    for ask in (client.responses.retrieve, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            ask("resp_none")


def test_cancelled_once_and_for_all(server: StartServer) -> None:
    with server(faults={"seconds": 0.02}) as running:
        client = official(running)
        asked = {**ASKED, "max_output_tokens": 2000, "extra_body": {"ignore_eos": True}}
        begun = client.responses.create(**asked, input="one", background=True)
        with pytest.raises(openai.BadRequestError, match="go on from one that is complete"):
            client.responses.create(**ASKED, input="two", previous_response_id=begun.id)
        for _ in range(2):
            assert client.responses.cancel(begun.id).status == "cancelled"
        assert client.responses.retrieve(begun.id).status == "cancelled"
        with pytest.raises(openai.ConflictError):
            list(client.responses.retrieve(begun.id, stream=True))
        other = client.responses.create(**asked, input="one", background=True)
        client.responses.delete(other.id)
        assert gone(client, other.id)
        running.wait_idle()
        done = client.responses.create(**ASKED, input="one", background=True)
        status = ended(client, done.id).status
        assert status in DONE and client.responses.cancel(done.id).status == status


def test_who_listens_learns_that_it_was_cancelled(server: StartServer) -> None:
    with server(faults={"seconds": 0.02}) as running:
        client = official(running)
        asked = {**ASKED, "max_output_tokens": 2000, "extra_body": {"ignore_eos": True}}
        stream = client.responses.create(**asked, input="one", background=True, stream=True)
        first = next(stream)
        client.responses.cancel(first.response.id)  # type: ignore[union-attr]
        *_, last = stream
        assert last.type == "response.failed" and last.response.error is not None
        assert last.response.error.code == "response_cancelled"  # type: ignore[comparison-overlap]


def test_a_failure_is_stored(server: StartServer) -> None:
    with server(faults={"nonfinite": {"5": 2}}) as running:
        client = official(running)
        begun = client.responses.create(
            **ASKED, input="one", background=True, extra_body={"seed": 5}
        )
        done = ended(client, begun.id)
        assert done.status == "failed" and done.error.code == "model_numerics"


def test_the_oldest_gives_way(server: StartServer) -> None:
    with server(state_entries=3) as running:
        client = official(running)
        made = [client.responses.create(**ASKED, input=f"{i}").id for i in range(5)]
        assert gone(client, made[0]) and gone(client, made[1])
        assert client.responses.retrieve(made[2]).id == made[2]


@pytest.mark.parametrize("full", [{"state_entries": 2}, {"state_bytes": 3000}])
def test_what_is_not_stored_has_no_quota(server: StartServer, full: dict[str, int]) -> None:
    """And adds to a conversation that is there, whatever the quota is."""
    with server(**full) as running:
        client = official(running)
        talk = client.conversations.create()
        with pytest.raises(openai.RateLimitError):
            for i in range(9):
                client.files.create(file=(f"{i}", b"x" * 900), purpose="user_data")
        with pytest.raises(openai.RateLimitError, match="stored"):
            client.responses.create(**ASKED, input="one")
        more = {"Idempotency-Key": "key"}
        made = client.responses.create(**ASKED, input="one", store=False, extra_headers=more)
        assert made.status in DONE and gone(client, made.id)
        *_, end = client.responses.create(**ASKED, input="one", store=False, stream=True)
        assert end.response.status in DONE
        client.responses.create(**ASKED, input="one", store=False, conversation=talk.id)
        assert len(client.conversations.items.list(talk.id).data) == 2
        chat = {"messages": [{"role": "user", "content": "one"}], "max_tokens": 3}
        assert running.post("/v1/chat/completions", {**chat, "store": False}).status_code == 200
        assert running.post("/v1/chat/completions", {**chat, "store": True}).status_code == 429


def test_the_next_server_goes_on(server: StartServer, tmp_path: Path) -> None:
    """SIGTERM and kill -9: the answer, and its events, are what they would have been."""
    state = str(tmp_path / "state")
    asked = {**ASKED, "max_output_tokens": 200, "extra_body": {"ignore_eos": True, "seed": 3}}
    made = kept = None
    for how in ("terminate", "kill", "wait"):
        with server(faults={"seconds": 0.02}, state_dir=state) as running:
            client = official(running)
            if made is None:
                kept = client.responses.create(**ASKED, input="kept")
                made = client.responses.create(**asked, input="one", background=True).id
            if how == "wait":
                done, events = ended(client, made), events_of(running, made)
                whole = client.responses.create(**asked, input="one", store=False)
                assert kept and client.responses.retrieve(kept.id).output == kept.output
                break
            stream = client.responses.retrieve(made, stream=True)
            for _ in range(30):
                next(stream)
            getattr(running.process, how)()
            running.process.wait(PATIENCE)
            stream.close()
    assert done.output_text == whole.output_text
    assert done.usage.output_tokens == whole.usage.output_tokens == 200  # type: ignore[union-attr]
    assert events.count(b"\n\n") == events.count(b'"sequence_number":')


def test_a_state_that_cannot_be_written_ends_no_stream(server: StartServer, tmp_path: Path) -> None:
    """Somebody else holds its lock, while the server drains."""
    state = tmp_path / "state"
    slow: dict[str, Any] = {"ignore_eos": True, "model": MODEL}
    with server(faults={"seconds": 0.02}, state_dir=str(state)) as running:
        running.post("/v1/responses", {**slow, "input": "x", "background": True})
        asked = {**slow, "prompt": "x", "max_tokens": 500, "stream": True}
        with (
            running.http.stream("POST", running.url + "/v1/completions", json=asked) as stream,
            closing(sqlite3.connect(state / "state.db", isolation_level=None)) as db,
        ):
            lines = stream.iter_lines()
            next(lines)
            db.execute("BEGIN IMMEDIATE")
            running.process.terminate()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert running.process.wait(PATIENCE) == 0
