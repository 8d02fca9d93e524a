"""Large stored chats and responses: whoever sends one, or asks for it, holds up nobody else of the
state for longer than a piece takes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from kvasir.core.errors import CapacityError
from kvasir.core.messages import TokenEvent
from kvasir.serve.continued import read_log
from kvasir.serve.slices import at_once
from kvasir.serve.state import chats as state_chats
from kvasir.serve.state import entries, parts
from kvasir.serve.state import responses as state_responses
from kvasir.serve.state.chats import EVENTS, KEPT, Chats, StillComputed
from kvasir.serve.state.conversations import Conversations
from kvasir.serve.state.entries import Gone, Page, Quota
from kvasir.serve.state.parts import DRAFT_SECONDS, PIECE_BYTES
from kvasir.serve.state.responses import ResponseRecord, Responses
from kvasir.serve.state.store import StateBusy, Store
from kvasir.tokenizer.messages import ChatMessage

OWNER = b"somebody"
MIB = 2**20
SHORT = 100_000
"""Characters of each of many messages; one is as large as a body may be."""
MESSAGES = tuple(ChatMessage("user", chr(97 + i % 26) * SHORT) for i in range(60))
LARGE = ChatMessage("user", "large " * (MIB // 2))
COMPLETION = msgspec.json.encode({"id": "c", "metadata": None, "text": "said " * (2 * MIB)})
SAID = [TokenEvent(0, tokens=(i,)) for i in range(200_000)]
KEPT_BYTES = bytes(range(256)) * 4 * 4096


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store(None, Quota(99, 2**30, 99, 2**30))
    yield made
    made.close()


async def stored(chats: Chats, name: str, messages: tuple[ChatMessage, ...] = MESSAGES) -> None:
    await chats.add(name, OWNER, "m", messages, KEPT_BYTES, {})
    with pytest.raises(StillComputed):
        await chats.whole(name, OWNER)
    await chats.finish(name, COMPLETION, SAID)


def weight(value: Any) -> int:
    """Bytes that a question to the database gave."""
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(weight, value)) + 8 * len(value)
    if isinstance(value, dict):
        return weight(list(value.items()))
    return weight(msgspec.structs.astuple(value)) if isinstance(value, msgspec.Struct) else 8


def test_no_question_reads_more_than_a_piece(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the dearest chat there may be: whole, in lists, its messages, its events."""
    chats = Chats(store, 1)
    weights: list[int] = []
    run = store.run

    async def weighed(work: Callable[[sqlite3.Connection], Any]) -> Any:
        value = await run(work)
        weights.append(weight(value))
        return value

    async def ask() -> None:
        for name in ("chat", "next"):
            await stored(chats, name, (*MESSAGES, LARGE))
        monkeypatch.setattr(store, "run", weighed)
        assert b"".join(await chats.whole("chat", OWNER)) == COMPLETION
        page, has_more = await chats.page(OWNER, Page(100, ended=True))
        assert (list(page), has_more) == (["next"], True)
        _, kept = await chats.part("chat", OWNER, KEPT)
        assert b"".join(kept) == KEPT_BYTES
        _, events = await chats.part("chat", OWNER, EVENTS)
        assert at_once(read_log(events)).events == SAID and len(events) > 20
        found, _ = await chats.messages("chat", OWNER, Page(100))
        assert [message for _, message in found] == [LARGE, *reversed(MESSAGES)]

    asyncio.run(ask())
    assert len(weights) > 2 * len(COMPLETION) // PIECE_BYTES
    assert max(weights) < PIECE_BYTES + 4096


@pytest.fixture
def written(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of parts that each question to the database writes from now on."""
    found: list[int] = []
    run = store.run

    async def counted(work: Callable[[sqlite3.Connection], Any]) -> Any:
        def inside(db: sqlite3.Connection) -> Any:
            before = n_in_parts(db)
            value = work(db)
            found.append(n_in_parts(db) - before)
            return value

        return await run(inside)

    monkeypatch.setattr(store, "run", counted)
    return found


def n_in_parts(db: sqlite3.Connection) -> int:
    (n,) = db.execute("SELECT coalesce(sum(length(data)), 0) FROM parts").fetchone()
    return int(n)


def test_what_is_asked_is_written_in_pieces(store: Store, written: list[int]) -> None:
    """Of a chat and a response whose messages are as large as a body may be; nobody finds them
    before they are whole."""
    chats, responses = Chats(store, 1), Responses(store, Conversations(store, 1), 1)
    messages = (*MESSAGES, LARGE)
    items = tuple(msgspec.Raw(b'{"text":"%s"}' % (b"x" * SHORT)) for _ in range(20))
    answer = msgspec.Raw(b'{"id":"response","status":"completed","output":[]}')
    record = ResponseRecord(response=answer, messages=messages, n_before=3, items_before=items)

    kinds: tuple[entries.Kind, ...] = ("chat", "response")

    async def ask() -> None:
        adding = [
            asyncio.create_task(chats.add("chat", OWNER, "m", messages, KEPT_BYTES, {"a": "b"})),
            asyncio.create_task(responses.add("response", OWNER, "m", record)),
        ]
        while not all(task.done() for task in adding):
            for task, kind in zip(adding, kinds, strict=True):
                shown = await store.run(partial(entries.ids, kind=kind))
                assert not shown or task.done() or sum(written) > 12 * MIB
        await asyncio.gather(*adding)
        asked = Page(9, metadata=(("a", "b"),))
        assert (await store.run(lambda db: entries.page(db, "chat", OWNER, asked, 0.0)))[0]
        found = await responses.get("response", OWNER)
        assert (found.messages, found.items_before) == (messages, items)
        assert (await found.said())[: len(messages)] == messages

    asyncio.run(ask())
    assert sum(written) > 20 * MIB and max(written) <= PIECE_BYTES


def test_what_is_not_written_to_its_end_is_nothing(store: Store, written: list[int]) -> None:
    """Its client leaves; or its server is killed, and the next finds it too old."""
    chats, run = Chats(store, 1), store.run

    async def killed(work: Callable[[sqlite3.Connection], Any]) -> Any:
        raise StateBusy("killed")

    async def begin(is_killed: bool) -> None:
        written.clear()
        adding = asyncio.create_task(chats.add("chat", OWNER, "m", MESSAGES, KEPT_BYTES, {}))
        while sum(written) < MIB:
            await asyncio.sleep(0.001)
        adding.cancel()
        if is_killed:
            store.run = killed  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await adding
        store.run = run  # type: ignore[method-assign]

    async def look() -> None:
        await begin(is_killed=False)
        assert await store.run(n_in_parts) == 0
        await begin(is_killed=True)
        assert await store.run(n_in_parts) >= MIB
        assert await store.run(lambda db: entries.lasting(db, "chat")) == {}
        now = store.clock()
        assert await store.run(lambda db: entries.expire(db, now + DRAFT_SECONDS - 60)) == []
        assert await store.run(lambda db: entries.expire(db, now + DRAFT_SECONDS)) == ["chat"]
        assert await store.run(n_in_parts) == 0
        assert (await store.run(lambda db: entries.used(db, OWNER))).bytes == 0

    asyncio.run(look())


def test_nothing_gives_way_to_what_is_not_whole(written: list[int], store: Store) -> None:
    """Only once it is: then the oldest goes, and its bytes count."""
    chats = Chats(store, 1)
    store.quota = Quota(9, 18 * MIB)

    async def ask() -> None:
        for name in ("old", "new"):
            await chats.add(name, OWNER, "m", (), b"", {})
            await chats.finish(name, b"x" * 4 * MIB, None)
        written.clear()
        adding = asyncio.create_task(chats.add("large", OWNER, "m", (LARGE,), KEPT_BYTES, {}))
        while sum(written) < 4 * MIB:
            await asyncio.sleep(0.001)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert set(await store.run(partial(entries.ids, kind="chat"))) == {"old", "new"}
        await chats.add("large", OWNER, "m", (LARGE,) * 2, KEPT_BYTES, {})
        assert set(await store.run(partial(entries.ids, kind="chat"))) == {"new", "large"}
        with pytest.raises(CapacityError):
            await chats.add("larger", OWNER, "m", (LARGE,) * 8, KEPT_BYTES, {})
        assert set(await store.run(partial(entries.ids, kind="chat"))) == {"new", "large"}
        assert 14 * MIB < (await store.run(lambda db: entries.used(db, OWNER))).bytes < 15 * MIB

    asyncio.run(ask())


def test_what_is_written_at_a_time_is_bounded(written: list[int], store: Store) -> None:
    """However many large answers come at once, and however little of them counts yet."""
    chats = Chats(store, 1)
    store.quota = Quota(99, 32 * MIB, 99, 64 * MIB)

    async def ask() -> None:
        adding = (chats.add(f"c{i}", OWNER, "m", (LARGE,), KEPT_BYTES, {}) for i in range(20))
        found = await asyncio.gather(*adding, return_exceptions=True)
        assert sum(x is None for x in found) == 4
        assert all(x is None or isinstance(x, CapacityError) for x in found)
        assert not store.drafts

    asyncio.run(ask())
    assert 16 * MIB < sum(x for x in written if x > 0) < 33 * MIB


def test_those_that_are_being_written_count_as_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come at once."""
    for module in (state_chats, state_responses):
        monkeypatch.setattr(module, "MAX_OPEN", 4)
    chats, responses = Chats(store, 1), Responses(store, Conversations(store, 1), 1)
    queued = msgspec.Raw(b'{"id":"r","status":"queued","output":[]}')
    record = ResponseRecord(response=queued, messages=(), is_done=False, kept=b"")

    async def ask() -> None:
        adding = [responses.add(f"r{i}", OWNER, "m", record) for i in range(9)]
        adding += [chats.add(f"c{i}", OWNER, "m", (), b"", {}) for i in range(9)]
        ended = await asyncio.gather(*adding, return_exceptions=True)
        assert sum(isinstance(error, CapacityError) for error in ended[:9]) == 5
        assert sum(isinstance(error, CapacityError) for error in ended[9:]) == 5
        assert (len(responses.live), len(chats.live)) == (4, 4)
        chats.live.clear()
        store.quota = Quota(0, 0)
        with pytest.raises(CapacityError):
            await chats.add("refused", OWNER, "m", (), b"", {})
        assert not chats.live, "what was refused does not count"

    asyncio.run(ask())


def test_what_is_published_stays_with_what_its_conversation_was_told(store: Store) -> None:
    """Its client leaves at that moment."""
    conversations, run = Conversations(store, 1), store.run
    responses = Responses(store, conversations, 1)
    answer = msgspec.Raw(b'{"id":"response","status":"completed","output":[]}')

    async def left(work: Callable[[sqlite3.Connection], Any]) -> Any:
        value = await run(work)
        if await run(partial(entries.ids, kind="response")):
            raise asyncio.CancelledError
        return value

    async def ask() -> None:
        talk = (await conversations.create(OWNER, [], {})).id
        record = ResponseRecord(response=answer, messages=(LARGE,), conversation=talk)
        store.run = left  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await responses.add("response", OWNER, "m", record)
        store.run = run  # type: ignore[method-assign]
        assert len(await conversations.items(talk, OWNER, "conversation")) == 1
        assert (await responses.get("response", OWNER)).messages == (LARGE,)

    asyncio.run(ask())


def test_others_are_asked_between_two_pieces(store: Store) -> None:
    chats = Chats(store, 1)
    order: list[str] = []

    async def read() -> None:
        await chats.whole("chat", OWNER)
        order.append("whole")

    async def ask() -> None:
        await stored(chats, "chat")
        reading = asyncio.create_task(read())
        for _ in range(len(COMPLETION) // PIECE_BYTES // 2):
            await store.run(lambda db: entries.used(db, OWNER))
            order.append("other")
        await reading

    asyncio.run(ask())
    assert order[-1] == "whole" and len(order) > 10


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_of_messages(store: Store, newest_first: bool) -> None:
    chats = Chats(store, 1)

    async def ask() -> None:
        await stored(chats, "chat")
        told: list[tuple[str, ChatMessage]] = []
        after: str | None = None
        has_more = True
        while has_more:
            asked = Page(7, after, newest_first)
            found, has_more = await chats.messages("chat", OWNER, asked)
            told += found
            after = found[-1][0]
        expected = [(f"chat-{i}", message) for i, message in enumerate(MESSAGES)]
        assert told == (expected[::-1] if newest_first else expected)
        for unknown in ("chat-60", "chat-007", "chat-x", "x", "chat--1", "chat-" + "9" * 5000):
            with pytest.raises(Gone):
                await chats.messages("chat", OWNER, Page(7, unknown, newest_first))
        assert await chats.messages("chat", OWNER, Page(7, after, newest_first)) == ([], False)

    asyncio.run(ask())


def test_a_part_that_is_put_again_meanwhile_is_read_again(store: Store) -> None:
    """Never half of each; and one that goes is gone."""
    chats = Chats(store, 1)

    async def ask() -> None:
        await stored(chats, "chat")
        find, n_asked = entries.find, 0
        now = store.clock()

        def asked(db: sqlite3.Connection) -> None:
            nonlocal n_asked
            find(db, "chat", "chat", OWNER, now)
            n_asked += 1

        reading = asyncio.create_task(parts.read(store, "chat", "completion", asked))
        updating = asyncio.create_task(
            store.run(lambda db: parts.put(db, "chat", "completion", parts.cut(b"new" * MIB)))
        )
        _, found = await reading
        assert await updating == 3 * MIB - len(COMPLETION)
        assert (b"".join(found), n_asked) == (b"new" * MIB, 2)
        reading = asyncio.create_task(parts.read(store, "chat", "completion", asked))
        dropping = asyncio.create_task(chats.drop("chat"))
        with pytest.raises(Gone):
            await reading
        await dropping

    asyncio.run(ask())


def test_what_a_chat_keeps_counts_until_it_goes(store: Store) -> None:
    chats = Chats(store, 1)

    async def used() -> int:
        return (await store.run(lambda db: entries.used(db, OWNER))).bytes

    async def ask() -> None:
        await stored(chats, "chat")
        n_parts = await store.run(
            lambda db: db.execute("SELECT sum(length(data)) FROM parts").fetchone()[0]
        )
        n_before = await used()
        assert n_parts < n_before < n_parts + 100
        shown = await chats.update("chat", OWNER, {"of": "test"})
        assert msgspec.json.decode(shown)["metadata"] == {"of": "test"}
        assert b"".join(await chats.whole("chat", OWNER)) == shown
        names = len("completion-") + 16  # at most, of the part that took its place
        assert 0 <= await used() - n_before - (len(shown) - len(COMPLETION)) < names
        n_after = await store.run(
            lambda db: db.execute("SELECT sum(length(data)) FROM parts").fetchone()[0]
        )
        assert n_after - n_parts == len(shown) - len(COMPLETION), "the other has gone"
        await chats.delete("chat", OWNER)
        assert await used() == 0
        left = await store.run(lambda db: db.execute("SELECT count(*) FROM parts").fetchone()[0])
        assert left == 0

    asyncio.run(ask())


def test_who_changes_metadata_again_and_again_holds_nobody_up(
    store: Store, written: list[int]
) -> None:
    """No question writes more than a piece: the others have turns between."""
    chats = Chats(store, 1)

    async def ask() -> None:
        await stored(chats, "chat")
        written.clear()
        for i in range(2):
            shown = await chats.update("chat", OWNER, {"of": str(i)})
            assert b"".join(await chats.whole("chat", OWNER)) == shown

    asyncio.run(ask())
    assert sum(map(abs, written)) > 4 * len(COMPLETION)
    assert max(map(abs, written)) <= PIECE_BYTES
