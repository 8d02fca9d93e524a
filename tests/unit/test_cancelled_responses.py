"""Who listens to a response that is cancelled hears its end, whether it was computed or waits."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from kvasir.core.errors import CapacityError
from kvasir.serve.state.chats import MAX_OPEN, Chats
from kvasir.serve.state.conversations import Conversations
from kvasir.serve.state.entries import Quota
from kvasir.serve.state.responses import Cancelled, ResponseRecord, Responses
from kvasir.serve.state.store import Store
from kvasir.serve.telling import Telling

NAME, OWNER = "resp_1", b"somebody"
RECORD = ResponseRecord(
    response=msgspec.Raw(b'{"id":"resp_1","status":"queued","output":[]}'),
    messages=(),
    is_done=False,
    kept=b"kept",
)


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_one_that_nobody_computes_yet(how: str) -> None:
    """As in a server that waits for the state of the one before."""
    store = Store(None, Quota(9, 9000, 9, 9000))

    async def end() -> dict[str, object]:
        responses = Responses(store, Conversations(store, 1), 1)
        await responses.add(NAME, OWNER, "m", RECORD)
        listening = asyncio.ensure_future(anext(responses.live[NAME].follow(0)))
        await asyncio.sleep(0)
        await getattr(responses, how)(NAME, OWNER)
        with pytest.raises(Cancelled, match="cancelled or deleted"):
            await asyncio.wait_for(listening, 5)
        return dict(responses.live)

    assert asyncio.run(end()) == {}
    store.close()


def test_answers_that_one_waits_for_leave_room_for_others() -> None:
    store = Store(None, Quota(9, 9000, 9, 9000))

    async def add() -> None:
        responses = Responses(store, Conversations(store, 1), 1)
        chats = Chats(store, 1)
        for live in (responses.live, chats.live):
            live |= {str(i): Telling(OWNER) for i in range(MAX_OPEN)}
        with pytest.raises(CapacityError, match="1000 responses wait in the background"):
            await responses.add(NAME, OWNER, "m", RECORD)
        with pytest.raises(CapacityError, match="1000 stored chats are computed"):
            await chats.add("chat", OWNER, "m", (), b"kept", {})
        await responses.add(NAME, b"another", "m", RECORD)
        await chats.add("chat", b"another", "m", (), b"kept", {})

    asyncio.run(add())
    store.close()
