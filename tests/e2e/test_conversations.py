"""Conversations through the official client, on a real server process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.harness import MODEL, PATIENCE, Server
from tests.e2e.test_files import official
from tests.e2e.test_stored_responses import ended

ASKED: Any = {"model": MODEL, "max_output_tokens": 24, "temperature": 0}
FIRST: Any = [
    {"type": "message", "role": "developer", "content": "be brief"},
    {"role": "user", "content": [{"type": "input_text", "text": "zero"}]},
    {"role": "assistant", "content": "nothing"},
]


@pytest.fixture
def client(toy: Server) -> Iterator[openai.OpenAI]:
    with official(toy) as client:
        yield client


def texts(client: openai.OpenAI, name: str) -> list[str]:
    items: Any = client.conversations.items.list(name, order="asc", limit=2)
    return [item.content[0].text for item in items]


def test_a_conversation_is_made_changed_and_forgotten(client: openai.OpenAI) -> None:
    made = client.conversations.create(items=FIRST, metadata={"of": "test"})
    assert (made.object, made.metadata) == ("conversation", {"of": "test"})
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"of": "other"})
    assert changed.metadata == {"of": "other"} and changed.created_at == made.created_at
    assert client.conversations.retrieve(made.id) == changed
    assert texts(client, made.id) == ["be brief", "zero", "nothing"]
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    for ask in (client.conversations.retrieve, client.conversations.delete):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.list(made.id)
    empty = client.conversations.create()
    assert empty.metadata == {} and texts(client, empty.id) == []


def test_items_come_and_go(client: openai.OpenAI) -> None:
    name = client.conversations.create(items=FIRST).id
    added: Any = client.conversations.items.create(
        name, items=[{"role": "user", "content": f"more {i}"} for i in range(3)]
    )
    assert [item.content[0].text for item in added.data] == ["more 0", "more 1", "more 2"]
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[2].id)
    assert texts(client, name) == ["be brief", "zero", "nothing", "more 0", "more 1", "more 2"]
    newest = client.conversations.items.list(name, limit=2)
    assert [item.id for item in newest.data] == [added.data[2].id, added.data[1].id]
    assert newest.has_more
    after = client.conversations.items.list(name, after=added.data[0].id)
    assert len(after.data) == 3 and not after.has_more
    one: Any = client.conversations.items.retrieve(added.data[1].id, conversation_id=name)
    assert one == added.data[1] and (one.role, one.status) == ("user", "completed")
    left = client.conversations.items.delete(added.data[1].id, conversation_id=name)
    assert (left.id, left.object) == (name, "conversation")
    for ask in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError):
            ask(added.data[1].id, conversation_id=name)
    assert len(texts(client, name)) == 5
    other = client.conversations.create().id
    with pytest.raises(openai.NotFoundError):  # of this conversation
        client.conversations.items.retrieve(one.id, conversation_id=other)


@pytest.mark.parametrize("way", ["whole", "stream", "background", "store: false"])
def test_what_is_said_is_added(client: openai.OpenAI, way: str) -> None:
    name = client.conversations.create(items=FIRST).id
    before = [item.id for item in client.conversations.items.list(name, order="asc")]
    more: Any = {"background": True} if way == "background" else {"store": way != "store: false"}
    more["include"] = ["message.output_text.logprobs"]
    asked: Any = {**ASKED, **more, "instructions": "be kind", "conversation": {"id": name}}
    if way == "stream":
        *_, end = client.responses.create(**asked, input="one", stream=True)
        first: Any = end.response
    else:
        first = client.responses.create(**asked, input="one")
    if way == "background":
        first = ended(client, first.id)
    assert first.conversation.id == name
    said = ["be brief", "zero", "nothing", "one", first.output_text]
    assert texts(client, name) == said
    second = client.responses.create(**ASKED, input="two", conversation=name)
    assert texts(client, name) == [*said, "two", second.output_text]
    talk: Any = [*FIRST, {"role": "user", "content": "one"}]
    talk += [{"role": "assistant", "content": said[-1]}, {"role": "user", "content": "two"}]
    alone = client.responses.create(**ASKED, input=talk, store=False)
    assert alone.output_text == second.output_text
    assert alone.usage and second.usage
    assert alone.usage.input_tokens == second.usage.input_tokens
    items = client.conversations.items.list(name, order="asc").data
    assert items[4].id == first.output[0].id
    given = client.responses.input_items.list(second.id, order="asc")
    assert [item.id for item in given] == [item.id for item in items[:6]]
    if way != "store: false":
        given = client.responses.input_items.list(first.id, order="asc", limit=3)
        assert [item.id for item in given] == [*before, items[3].id]


def test_logprobs_are_told_where_they_are_wanted(client: openai.OpenAI) -> None:
    name = client.conversations.create().id
    wanted: Any = ["message.output_text.logprobs"]
    made: Any = client.responses.create(**ASKED, input="one", conversation=name, include=wanted)
    answer = made.output[0]
    ask: Any = client.conversations.items
    for more, logprobs in (({"include": wanted}, answer.content[0].logprobs), ({}, [])):
        one = ask.retrieve(answer.id, conversation_id=name, **more)
        assert one.content[0].logprobs == logprobs
        assert ask.list(name, **more).data[0] == one
    for call in (
        lambda: ask.list(name, include=["reasoning.encrypted_content"]),
        lambda: ask.retrieve(answer.id, conversation_id=name, include=["x"]),
        lambda: ask.create(name, items=FIRST, include=["x"]),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            call()
        assert caught.value.param == "include"


def test_each_of_many_at_once_is_added_in_one_piece(client: openai.OpenAI) -> None:
    name = client.conversations.create(items=FIRST).id

    def ask(i: int) -> Any:
        return client.responses.create(**ASKED, input=f"at once {i}", conversation=name)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(ask, range(8)))
    said = texts(client, name)
    pairs = dict(zip(said[3::2], said[4::2], strict=True))
    assert pairs == {f"at once {i}": one.output_text for i, one in enumerate(made)}


def test_what_fails_or_is_cancelled_adds_nothing(server: StartServer) -> None:
    with server(faults={"nonfinite": {"5": 2}, "seconds": 0.02}) as running:
        client = official(running)
        name = client.conversations.create(items=FIRST).id
        asked: Any = {**ASKED, "conversation": name, "extra_body": {"seed": 5}}
        with pytest.raises(openai.APIError):
            client.responses.create(**asked, input="x")
        *_, end = client.responses.create(**asked, input="x", stream=True)
        assert end.type == "response.failed"
        long = {**ASKED, "max_output_tokens": 2000, "extra_body": {"ignore_eos": True}}
        begun = client.responses.create(**long, input="x", conversation=name, background=True)
        client.responses.cancel(begun.id)
        left = client.responses.create(**long, input="x", conversation=name, stream=True)
        next(left)
        left.close()
        running.wait_idle()
        assert texts(client, name) == ["be brief", "zero", "nothing"]
        gone = client.conversations.create().id
        begun = client.responses.create(
            **{**long, "max_output_tokens": 50}, input="x", conversation=gone, background=True
        )
        client.conversations.delete(gone)
        assert ended(client, begun.id).status == "incomplete"
        with pytest.raises(openai.NotFoundError):
            client.conversations.retrieve(gone)


def test_what_is_asked_is_checked(toy: Server, client: openai.OpenAI) -> None:
    made = client.responses.create(**ASKED, input="one")
    name = client.conversations.create().id
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**ASKED, input="x", conversation=name, previous_response_id=made.id)
    assert caught.value.param == "conversation"
    with pytest.raises(openai.NotFoundError) as absent:
        client.responses.create(**ASKED, input="x", conversation="conv_none")
    assert absent.value.param == "conversation"
    text = {"role": "user", "content": "x"}
    for path, body, param in (
        ("", {"items": [text] * 21}, "items"),
        ("", {"items": [{**text, "colour": "red"}]}, "items"),
        ("", {"items": [{"type": "image"}]}, "items[0].type"),
        ("", {"metadata": {"k" * 65: "v"}}, "metadata"),
        (f"/{name}", {}, "metadata"),
        (f"/{name}/items", {}, "items"),
        (f"/{name}/items", {"items": []}, "items"),
        (f"/{name}/items", {"items": [{"role": "tool", "content": "x"}]}, "items[0].role"),
    ):
        reply = toy.http.post(f"{toy.url}/v1/conversations{path}", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    counted: Any = client.post(
        "/responses/input_tokens",
        body={**ASKED, "input": "x", "conversation": name},
        cast_to=object,
    )
    alone = client.responses.create(**ASKED, input="x", conversation=name)
    assert alone.usage and counted["input_tokens"] == alone.usage.input_tokens


def test_a_conversation_is_no_answer_that_gives_way(server: StartServer) -> None:
    with server(state_entries=3) as running:
        client = official(running)
        name = client.conversations.create(items=FIRST).id
        for i in range(4):
            client.responses.create(**ASKED, input=f"{i}", conversation=name)
        assert len(texts(client, name)) == 11
        client.conversations.create()
        client.conversations.create()
        with pytest.raises(openai.RateLimitError, match="--state-entries"):
            client.conversations.create()


def test_it_survives_the_server(server: StartServer, tmp_path: Path) -> None:
    """What was confirmed is there after a kill, and what was in the background is added."""
    options: Any = {"faults": {"seconds": 0.02}, "state_dir": str(tmp_path / "state")}
    long: Any = {**ASKED, "max_output_tokens": 150, "extra_body": {"ignore_eos": True}}
    with server(**options) as running:
        client = official(running)
        name = client.conversations.create(items=FIRST).id
        client.responses.create(**ASKED, input="one", conversation=name)
        begun = client.responses.create(**long, input="two", conversation=name, background=True)
        stream = client.responses.retrieve(begun.id, stream=True)
        for _ in range(30):
            next(stream)
        running.process.kill()
        running.process.wait(PATIENCE)
    with server(**options) as running:
        client = official(running)
        done = ended(client, begun.id)
        assert texts(client, name)[3::2] == ["one", "two"]
        assert texts(client, name)[-1] == done.output_text
        assert done.usage and done.usage.output_tokens == 150


def test_a_model_without_sight_fetches_nothing(server: StartServer) -> None:
    part = {"type": "input_image", "image_url": "http://127.0.0.1/x"}
    items = {"items": [{"role": "user", "content": [part]}]}
    with server(allowed_media_domains="127.0.0.1") as own:
        refused = own.http.post(f"{own.url}/v1/conversations", json=items)
    error = refused.json()["error"]
    assert refused.status_code == 400 and "no model here reads images" in error["message"], error
