"""Stored responses: what they answered, and the conversation that the next goes on with."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import structs

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent
from kvasir.serve.continued import log_pieces
from kvasir.serve.dialects.items import answered, shown_items
from kvasir.serve.long import beside
from kvasir.serve.parts import Parts
from kvasir.serve.resolved import Json
from kvasir.serve.state import entries, parts
from kvasir.serve.state.conversations import Conversations, Rows, read_item, rows_of
from kvasir.serve.state.entries import Entry
from kvasir.serve.state.files import DAY_SECONDS
from kvasir.serve.state.kept import drop_progress
from kvasir.serve.state.said import GROUPS, MESSAGES, n_said, said_in, write_said
from kvasir.serve.state.store import Store, Work
from kvasir.serve.telling import Telling, check_open
from kvasir.tokenizer.messages import ChatMessage

MAX_OPEN = 1_000
"""Responses in the background that have not ended, of all keys."""
RESPONSE, ITEMS, KEPT, EVENTS = "response", "items", "kept", "events"
"""Parts, after the fields of ``ResponseRecord``, beside its messages (``said_of``); and what the
engine said of one that is complete, as ``log_pieces``."""
RECORD_PARTS = (MESSAGES, GROUPS, ITEMS, KEPT)

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.msgpack.Decoder(tuple[bytes, ...])


class Cancelled(KvasirError):
    """Whoever listened hears no more."""

    code = "response_cancelled"
    status = 409


ENDED_WELL = ("completed", "incomplete")


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one response without a look at its parts."""

    n_before: int = 0
    """Of its messages, those of the responses before."""
    conversation: str | None = None
    """The id of what it belongs to."""
    is_done: bool = True
    in_background: bool = False


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one response."""

    response: msgspec.Raw
    """JSON, as its client was answered last."""
    messages: tuple[ChatMessage, ...]
    """The conversation without instructions, as it was before the answer."""
    n_before: int = 0
    """As in ``ResponseHead``."""
    conversation: str | None = None
    items_before: tuple[msgspec.Raw, ...] = ()
    """Of the conversation, as it was when this was asked: as JSON."""
    is_done: bool = True
    kept: bytes | None = None
    """``Kept``, of one in the background."""

    def shown(self) -> Json:
        found: Json = msgspec.json.decode(self.response)
        return found

    def turn(self) -> Rows:
        """What its conversation is given; nothing unless it went well. The answer's items are as
        they are written: with log probabilities they would take long to read."""
        shown = self._said()
        if shown.status not in ENDED_WELL:
            return ()
        own = shown_items(self.messages[self.n_before :], shown.id.removeprefix("resp_"))
        told = [(_named.decode(item).id, bytes(item)) for item in shown.output]
        return [*rows_of(own), *told]

    def _said(self) -> _ResponseSaid:
        return msgspec.json.decode(self.response, type=_ResponseSaid)

    async def said(self) -> tuple[ChatMessage, ...]:
        """The conversation with the answer. Raises RequestError (400) while there is none."""
        answer = await beside(len(memoryview(self.response)), self._answered)
        return (*self.messages, *answer)

    def _answered(self) -> tuple[ChatMessage, ...]:
        shown = self._said()
        if shown.status not in ENDED_WELL:
            raise RequestError(
                f"the response {shown.id!r} is {shown.status}: go on from one that is complete",
                param="previous_response_id",
            )
        return answered([read_item(item) for item in shown.output])

    def head(self) -> ResponseHead:
        return ResponseHead(
            n_before=self.n_before,
            conversation=self.conversation,
            is_done=self.is_done,
            in_background=self.kept is not None,
        )

    async def parts(self) -> dict[str, bytes]:
        n_bytes = sum(len(memoryview(item)) for item in self.items_before)
        found = {
            RESPONSE: bytes(self.response),
            ITEMS: await beside(n_bytes, self._items),
            **await write_said(self.messages),
        }
        return found if self.kept is None else {**found, KEPT: self.kept}

    def _items(self) -> bytes:
        return msgspec.msgpack.encode([bytes(item) for item in self.items_before])


class _ResponseSaid(msgspec.Struct, frozen=True):
    """What is read of a response to go on with it."""

    id: str
    status: str
    output: list[msgspec.Raw]


async def standing(response: Parts, status: str) -> bytes:
    """JSON of ``response`` with this ``status``. Of the rest nothing is read."""

    def changed() -> bytes:
        shown = _fields.decode(b"".join(response))
        return msgspec.json.encode({**shown, "status": status})

    return await beside(sum(map(len, response)), changed)


async def _status(response: Parts) -> str:
    def read() -> str:
        return msgspec.json.decode(b"".join(response), type=_ResponseSaid).status

    return await beside(sum(map(len, response)), read)


class _Named(msgspec.Struct, frozen=True):
    id: str


_named = msgspec.json.Decoder(_Named)


def record_in(head: ResponseHead, found: dict[str, bytes]) -> ResponseRecord:
    """Of all parts."""
    return ResponseRecord(
        response=msgspec.Raw(found[RESPONSE]),
        messages=said_in(found),
        n_before=head.n_before,
        conversation=head.conversation,
        items_before=tuple(map(msgspec.Raw, _items.decode(found[ITEMS]))),
        is_done=head.is_done,
        kept=found.get(KEPT),
    )


class Responses:
    def __init__(self, store: Store, conversations: Conversations, days: int) -> None:
        """They are forgotten ``days`` after they have ended."""
        self.live: dict[str, Telling] = {}
        """Those in the background that have not ended, by their ids."""
        self.begin: Callable[[str], None] = lambda response_id: None
        """Called with the id of one in the background."""
        self.stop: Callable[[str], bool] = lambda response_id: False
        """Called with the id of one that was cancelled or deleted: whether it was computed."""
        self._store = store
        self._conversations = conversations
        self._days = days

    async def add(self, response_id: str, owner: bytes, model: str, record: ResponseRecord) -> None:
        """The oldest give way to it. One that is not done does not expire. Raises CapacityError
        (429), StorageFull (507)."""
        if record.is_done:
            return await self._store_whole(response_id, owner, model, record)
        check_open(self.live.values(), owner, MAX_OPEN, "responses wait in the background")
        self.live[response_id] = Telling(owner)  # counts while it is written, too
        try:
            await self._store_whole(response_id, owner, model, record)
        except BaseException:
            self.live.pop(response_id, None)
            raise
        if response_id in self.live:  # else it was found among what is open, and has ended
            self.begin(response_id)

    async def _store_whole(
        self, response_id: str, owner: bytes, model: str, record: ResponseRecord
    ) -> None:
        store, now = self._store, int(self._store.clock())
        expires = self._end(now) if record.is_done else None
        value, found = msgspec.json.encode(record.head()), await record.parts()
        size = len(value) + sum(map(len, found.values()))
        entry = Entry(response_id, "response", owner, model, now, expires, size, value)

        turn = await _turn(record) if record.is_done else ()
        also = partial(self._tell, owner=owner, name=record.conversation, turn=turn)
        await parts.add(store, entry, found, also)

    async def tell(self, owner: bytes, record: ResponseRecord) -> None:
        """Of one that is not stored: its conversation alone is given what was said."""
        turn, name = await _turn(record), record.conversation
        await self._store.run(partial(self._tell, owner=owner, name=name, turn=turn))

    def _tell(self, db: sqlite3.Connection, owner: bytes, name: str | None, turn: Rows) -> None:
        if name is not None and turn:
            self._conversations.told(db, name, owner, turn)

    async def part(
        self, response_id: str, owner: bytes, name: str, param: str | None = None
    ) -> tuple[ResponseHead, Parts]:
        """With what it belongs to. Raises Gone (404)."""
        find = self._find(response_id, owner, param)
        return await parts.read(self._store, response_id, name, find)

    async def get(self, response_id: str, owner: bytes, param: str | None = None) -> ResponseRecord:
        """Raises Gone (404)."""
        return await self._whole(response_id, self._find(response_id, owner, param))

    def _find(self, response_id: str, owner: bytes, param: str | None = None) -> Work[ResponseHead]:
        now = self._store.clock()
        return lambda db: _head(entries.find(db, "response", response_id, owner, now, param))

    async def _whole(self, response_id: str, find: Work[ResponseHead]) -> ResponseRecord:
        """The head is that of the first part: one that ends meanwhile has no more then than it had
        when it was looked at."""
        head, first = await parts.read(self._store, response_id, RESPONSE, find)
        found = {RESPONSE: b"".join(first)}
        for name in RECORD_PARTS:
            _, pieces = await parts.read(self._store, response_id, name, find)
            if pieces:
                found[name] = b"".join(pieces)
        return await beside(sum(map(len, found.values())), partial(record_in, head, found))

    async def load(self, response_id: str) -> ResponseRecord | None:
        """Whoever asks; None when it is gone."""

        def find(db: sqlite3.Connection) -> ResponseHead:
            entry = entries.any_owner(db, response_id)
            if entry is None:
                raise entries.Gone("response", response_id)
            return _head(entry)

        try:
            return await self._whole(response_id, find)
        except entries.Gone:
            return None

    async def open(self) -> dict[str, bytes]:
        """Whose they are that have not ended, by their ids, the oldest first."""
        return await self._store.run(lambda db: entries.lasting(db, "response"))

    async def finish(
        self, response_id: str, response: bytes, said: Sequence[TokenEvent] | None
    ) -> None:
        """``said``: all that the engine said, of one that can be told again. Whoever cancelled it
        meanwhile is not overruled."""
        found = {RESPONSE: parts.cut(response)}
        if said is not None:
            found[EVENTS] = list(log_pieces(said))

        def change(db: sqlite3.Connection) -> None:
            entry = entries.any_owner(db, response_id)
            if entry is not None and not _head(entry).is_done:
                self._end_with(db, entry, found)

        await self._store.run(change)

    async def cancel(self, response_id: str, owner: bytes) -> Parts:
        """JSON of the response. Asked again, or of one that has ended, it says the same. Raises
        Gone (404), RequestError (400)."""
        head, data = await self.part(response_id, owner, RESPONSE)
        if not head.in_background:
            raise RequestError(
                "only a response of background: true can be cancelled: close the connection "
                "of another",
                code="not_in_background",
            )
        if not head.is_done:
            shown = await standing(data, "cancelled")
            data = await self._cancelled(response_id, owner, parts.cut(shown))
        if response_id in self.live and await _status(data) == "cancelled":
            self._stop(response_id)
        return data

    async def _cancelled(self, response_id: str, owner: bytes, shown: list[bytes]) -> Parts:
        """``shown``, or what it has ended with meanwhile."""
        now, found = self._store.clock(), {RESPONSE: shown}

        def change(db: sqlite3.Connection) -> bool:
            entry = entries.find(db, "response", response_id, owner, now)
            is_done = _head(entry).is_done
            if not is_done:
                self._end_with(db, entry, found)
            return is_done

        if not await self._store.run(change):
            return [*shown]
        return (await self.part(response_id, owner, RESPONSE))[1]

    async def delete(self, response_id: str, owner: bytes) -> None:
        """Raises Gone (404)."""
        now = self._store.clock()
        await self._store.run(lambda db: entries.remove(db, "response", response_id, owner, now))
        self._stop(response_id)

    def _stop(self, response_id: str) -> None:
        telling = self.live.get(response_id)
        if telling is not None:
            telling.end(Cancelled(f"the response {response_id!r} was cancelled or deleted"))
            if not self.stop(response_id):
                del self.live[response_id]

    def _end_with(
        self, db: sqlite3.Connection, entry: Entry, found: Mapping[str, Sequence[bytes]]
    ) -> None:
        """With these parts; its conversation is given what was said."""
        n_more = sum(parts.put(db, entry.id, name, some) for name, some in found.items())
        head = structs.replace(_head(entry), is_done=True)
        if head.conversation is not None:
            names = (RESPONSE, MESSAGES, GROUPS, ITEMS)
            every = {name: parts.whole(db, entry.id, name) for name in names}
            self._tell(db, entry.owner, head.conversation, record_in(head, every).turn())
        drop_progress(db, entry.id, 0)
        value = msgspec.json.encode(head)
        n_bytes = entry.n_bytes + len(value) - len(entry.value) + n_more
        entries.replace(db, entry.id, value, n_bytes, self._end(int(self._store.clock())))

    def _end(self, now: int) -> int:
        return now + self._days * DAY_SECONDS


async def _turn(record: ResponseRecord) -> Rows:
    """Beside both the event loop and the thread of the database where it is long."""
    if record.conversation is None:
        return ()
    n_bytes = len(memoryview(record.response)) + n_said(record.messages[record.n_before :])
    return await beside(n_bytes, record.turn)


def _head(entry: Entry) -> ResponseHead:
    return msgspec.json.decode(entry.value, type=ResponseHead)
