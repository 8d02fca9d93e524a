"""Stored chat completions through the official client, on a real server process."""

from __future__ import annotations

import json
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
from tests.e2e.harness import MODEL, PATIENCE, Server, wait_until
from tests.e2e.test_files import official

PATH = "/v1/chat/completions"
TALK: Any = [{"role": "system", "content": "be"}, {"role": "user", "content": "one"}]
ASKED: Any = {"model": MODEL, "messages": TALK, "max_tokens": 24, "temperature": 0.8, "seed": 3}
LONG: Any = {**ASKED, "max_tokens": 200, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(toy: Server) -> Iterator[openai.OpenAI]:
    with official(toy) as client:
        yield client


def events_of(running: Server, chat_id: str, more: str = "") -> list[bytes]:
    path = f"{running.url}{PATH}/{chat_id}?stream=true{more}"
    data = httpx.get(path, timeout=PATIENCE, trust_env=False).content
    return [event for event in data.split(b"\n\n") if event and not event.startswith(b":")]


def streamed(running: Server, **asked: Any) -> list[bytes]:
    """The events of a new chat."""
    body = {**asked, **asked.pop("extra_body", {}), "stream": True}
    data = running.post(PATH, body).content
    return [event for event in data.split(b"\n\n") if event and not event.startswith(b":")]


def id_of(event: bytes) -> str:
    return str(json.loads(event.removeprefix(b"data: "))["id"])


def gone(client: openai.OpenAI, chat_id: str) -> bool:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(chat_id)
    return True


def test_what_was_answered_is_kept_until_it_is_deleted(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(**ASKED, store=True, metadata={"of": "test"}, n=2)
    assert client.chat.completions.retrieve(made.id).model_dump() == made.model_dump()
    plain = client.chat.completions.create(**ASKED, metadata={"of": "test"}, n=2)
    assert [x.message for x in plain.choices] == [x.message for x in made.choices]
    assert plain.usage and made.usage
    assert plain.usage.completion_tokens == made.usage.completion_tokens
    assert gone(client, plain.id)
    deleted = client.chat.completions.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (
        made.id,
        "chat.completion.deleted",
        True,
    )
    assert gone(client, made.id)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.delete(made.id)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n": 3, "stop": ["e"]},
        {"n": 2, "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}},
        {"stream_interval": 4, "return_token_ids": True},
    ],
)
def test_a_stream_is_told_again_from_anywhere(
    toy: Server, client: openai.OpenAI, more: dict[str, Any]
) -> None:
    events = streamed(toy, **ASKED, **more, store=True)
    assert events[-1] == b"data: [DONE]"
    chat_id = id_of(events[0])
    assert events_of(toy, chat_id) == events
    for number in (0, 3, len(events) - 2):
        assert events_of(toy, chat_id, f"&starting_after={number}") == events[number + 1 :]
    whole = client.chat.completions.retrieve(chat_id)
    texts = {choice.index: "" for choice in whole.choices}
    for event in events[:-1]:
        for choice in json.loads(event.removeprefix(b"data: "))["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == {choice.index: choice.message.content for choice in whole.choices}


def test_a_whole_answer_has_a_stream(toy: Server, client: openai.OpenAI) -> None:
    made = client.chat.completions.create(**ASKED, store=True)
    said = ""
    for event in events_of(toy, made.id)[:-1]:
        said += json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"]["content"]
    assert said == made.choices[0].message.content


def test_lists_are_narrowed_and_have_pages(server: StartServer) -> None:
    with server() as running:
        client = official(running)
        made = [
            client.chat.completions.create(
                **ASKED, store=True, metadata={"turn": str(i % 2), "of": 'a "b"'}
            ).id
            for i in range(5)
        ]
        assert [x.id for x in client.chat.completions.list(limit=2)] == made
        newest = client.chat.completions.list(limit=2, order="desc")
        assert [x.id for x in newest.data] == made[:2:-1] and newest.has_more
        after = client.chat.completions.list(after=made[2])
        assert [x.id for x in after.data] == made[3:]
        odd = client.chat.completions.list(metadata={"turn": "1", "of": 'a "b"'})
        assert [x.id for x in odd.data] == made[1::2]
        assert not client.chat.completions.list(metadata={"turn": "2"}).data
        assert not client.chat.completions.list(model="other").data
        assert len(client.chat.completions.list(model=MODEL).data) == 5
        changed: Any = client.chat.completions.update(made[0], metadata={"turn": "2"})
        assert changed.metadata == {"turn": "2"}
        found: Any = client.chat.completions.list(metadata={"turn": "2"}).data
        assert [x.id for x in found] == made[:1] and found[0].metadata == {"turn": "2"}
        none: Any = client.chat.completions.update(made[0], metadata=None)
        assert none.metadata == {}
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.update(made[0], metadata={"k" * 65: "v"})
        for asked in ({"limit": 0}, {"order": "up"}):
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.list(**asked)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.list(after="chatcmpl-none")


def test_its_messages_come_in_pages(client: openai.OpenAI) -> None:
    talk: Any = [{"role": "user", "content": f"text {i}"} for i in range(4)]
    talk[1] = {"role": "assistant", "content": [{"type": "text", "text": "text 1"}]}
    made = client.chat.completions.create(**{**ASKED, "messages": talk}, store=True)
    listed = client.chat.completions.messages.list(made.id, limit=3)
    assert [x.content for x in listed] == [f"text {i}" for i in range(4)]
    assert [(x.id, x.role) for x in listed.data[:2]] == [
        (f"{made.id}-0", "user"),
        (f"{made.id}-1", "assistant"),
    ]
    newest = client.chat.completions.messages.list(made.id, order="desc", after=f"{made.id}-2")
    assert [x.content for x in newest.data] == ["text 1", "text 0"]
    for ask in ("chatcmpl-none", f"{made.id}-0"):
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.messages.list(ask)


def test_what_is_asked_is_checked(toy: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED, store=True, extra_body={"return_metrics": True})
    assert caught.value.param == "return_metrics"
    made = client.chat.completions.create(**ASKED, store=True)
    for query in ("starting_after=1", "stream=maybe", "stream=true&starting_after=-1", "x=1"):
        assert toy.get(f"{PATH}/{made.id}?{query}").status_code == 400, query
    past = toy.get(f"{PATH}/{made.id}?stream=true&starting_after=99999")
    assert past.status_code == 200 and past.content == b""


def test_beams_are_kept_and_have_no_stream(toy: Server, client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": TALK, "max_tokens": 6, "n": 2}
    made = client.chat.completions.create(**asked, store=True, extra_body={"use_beam_search": True})
    assert client.chat.completions.retrieve(made.id).model_dump() == made.model_dump()
    assert toy.get(f"{PATH}/{made.id}?stream=true").status_code == 400


def test_it_goes_on_without_its_client_until_it_is_deleted(server: StartServer) -> None:
    with server(faults={"seconds": 0.02}) as running:
        client = official(running)
        stream = client.chat.completions.create(**LONG, store=True, stream=True)
        first = next(stream)
        with pytest.raises(openai.ConflictError, match="stream=true"):
            client.chat.completions.retrieve(first.id)
        assert first.id not in [x.id for x in client.chat.completions.list()]
        stream.close()
        events = events_of(running, first.id)  # while it is computed, to its end
        assert id_of(events[0]) == first.id and events[-1] == b"data: [DONE]"
        assert events_of(running, first.id) == events
        done = client.chat.completions.retrieve(first.id)
        assert done.usage and done.usage.completion_tokens == 200
        other = client.chat.completions.create(
            **{**LONG, "max_tokens": 2000}, store=True, stream=True
        )
        second = next(other)
        client.chat.completions.delete(second.id)
        with pytest.raises(openai.APIError, match="was deleted"):
            list(other)
        assert gone(client, second.id)
        running.wait_idle()


def test_what_fails_is_not_kept(server: StartServer) -> None:
    with server(faults={"nonfinite": {"5": 2}}) as running:
        client = official(running)
        for stream in (False, True):
            with pytest.raises(openai.APIError, match="logits"):
                list(
                    client.chat.completions.create(  # type: ignore[call-overload]
                        **{**ASKED, "seed": 5}, store=True, stream=stream
                    )
                )
        assert client.chat.completions.list().data == []


def test_the_oldest_gives_way(server: StartServer) -> None:
    with server(state_entries=3) as running:
        client = official(running)
        made = [client.chat.completions.create(**ASKED, store=True).id for _ in range(5)]
        assert gone(client, made[0]) and gone(client, made[1])
        assert [x.id for x in client.chat.completions.list()] == made[2:]


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_the_next_server_goes_on(server: StartServer, tmp_path: Path, how: str) -> None:
    """The answer, and its events, are what they would have been."""
    asked = {**LONG, "n": 2}
    state = str(tmp_path / "state")
    options: Any = {"state_dir": state, "shutdown_timeout": 1}
    with server(faults={"seconds": 0.02}, **options) as running:
        client = official(running)
        kept = client.chat.completions.create(**ASKED, store=True)
        stream = client.chat.completions.create(**asked, store=True, stream=True)
        heard = [chunk for chunk, _ in zip(stream, range(60), strict=False)]
        getattr(running.process, how)()
        running.process.wait(PATIENCE)
        stream.close()
    with server(**options) as running:
        client, chat_id = official(running), heard[0].id
        wait_until(lambda: running.get(f"{PATH}/{chat_id}?stream=true").status_code == 200)
        events = events_of(running, chat_id)
        rest = events_of(running, chat_id, f"&starting_after={len(heard) - 1}")
        assert rest == events[len(heard) :]
        told = [json.loads(event.removeprefix(b"data: ")) for event in events[: len(heard)]]
        assert told == [chunk.model_dump(exclude_unset=True) for chunk in heard]
        whole = client.chat.completions.retrieve(chat_id)
        alone = client.chat.completions.create(**asked)
        assert [x.message.content for x in whole.choices] == [
            x.message.content for x in alone.choices
        ]
        assert whole.usage and whole.usage.completion_tokens == 400
        assert client.chat.completions.retrieve(kept.id).model_dump() == kept.model_dump()


def test_one_that_cannot_be_read_holds_no_other_up(server: StartServer, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with server(faults={"seconds": 0.02}, state_dir=str(state)) as running:
        ids = []
        for _ in range(2):
            with official(running) as client:
                stream = client.chat.completions.create(**LONG, store=True, stream=True)
                ids.append(next(stream).id)
                stream.close()
        running.process.kill()
        running.process.wait(PATIENCE)
    with closing(sqlite3.connect(state / "state.db")) as db, db:
        db.execute("UPDATE entries SET value = '[]' WHERE id = ?", ids[:1])
        columns = "(id, kind, owner, label, created, n_bytes, value)"
        db.execute(
            f"INSERT INTO entries {columns} VALUES ('batch-x', 'batch', '', '', 0, 2, '{{}}')"
        )
    with server(state_dir=str(state)) as running:
        wait_until(lambda: running.get(f"{PATH}/{ids[1]}").status_code == 200)
        left = [line for line in running.lines if "is left as it is" in line]
        assert len(left) == 2 and ids[0] in "".join(left)


def test_a_state_that_could_not_be_written_is_tried_again(
    server: StartServer, tmp_path: Path
) -> None:
    """Somebody else holds its lock for longer than the server waits."""
    state = tmp_path / "state"
    with server(faults={"seconds": 0.01}, state_dir=str(state)) as running:
        body = {**ASKED, "max_tokens": 200, "ignore_eos": True, "store": True, "stream": True}
        with (
            running.http.stream("POST", running.url + PATH, json=body, timeout=PATIENCE) as stream,
            closing(sqlite3.connect(state / "state.db", isolation_level=None)) as db,
        ):
            lines = (line for line in stream.iter_lines() if line)
            chat_id = id_of(next(lines).encode())
            db.execute("BEGIN IMMEDIATE")
            told = list(lines)
        assert "state_failed" in told[-1]
        wait_until(lambda: running.get(f"{PATH}/{chat_id}").status_code == 200)
        events = events_of(running, chat_id)
        assert [event.decode() for event in events[1 : len(told)]] == told[:-1]


def test_repeated_with_a_key(toy: Server) -> None:
    headers = {"idempotency-key": f"chat-{time.time_ns()}"}
    body = {**ASKED, "store": True}
    first = toy.post(PATH, body, **headers)
    again = toy.post(PATH, body, **headers)
    assert again.content == first.content and again.headers["idempotent-replayed"] == "true"
