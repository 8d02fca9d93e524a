"""Sessions: whose turn it is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir.core.errors import CapacityError, RequestError
from kvasir.serve.dialects.table import GENERATES
from kvasir.serve.exchange import ClientGone
from kvasir.serve.protocol.sampling import SESSION_SECONDS
from kvasir.serve.sessions import MAX_WAITING, Sessions

TEXT: dict[str, Any] = {"model": "toy", "prompt": "x"}


def patient() -> Any:
    async def never() -> None:
        await asyncio.Event().wait()

    return SimpleNamespace(disconnected=never)


async def told(sessions: Sessions, log: list[str], name: str, session: str, owner: bytes) -> None:
    async with sessions.turn(owner, session, patient()):
        log.append(f"+{name}")
        for _ in range(3):
            await asyncio.sleep(0)
        log.append(f"-{name}")


def test_one_after_another_in_the_order_in_which_they_came() -> None:
    sessions, log = Sessions(), []

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(told(sessions, log, name, "s", b"k"))

    asyncio.run(main())
    assert log == ["+a", "-a", "+b", "-b", "+c", "-c"]
    assert not len(sessions)


@pytest.mark.parametrize(("session", "owner"), [("t", b"k"), ("s", b"l"), ("", b"k")])
def test_others_do_not_wait(session: str, owner: bytes) -> None:
    sessions, log = Sessions(), []

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(told(sessions, log, "a", "s" if session else "", b"k"))
            group.create_task(told(sessions, log, "b", session, owner))

    asyncio.run(main())
    assert log[:2] == ["+a", "+b"]


def test_a_client_that_goes_leaves_the_line() -> None:
    sessions, log = Sessions(), []

    async def main() -> None:
        gone = asyncio.Event()
        async with sessions.turn(b"k", "s", patient()):
            left: Any = SimpleNamespace(disconnected=gone.wait)

            async def waits() -> None:
                async with sessions.turn(b"k", "s", left):
                    log.append("never")

            waiting = asyncio.create_task(waits())
            later = asyncio.create_task(told(sessions, log, "b", "s", b"k"))
            await asyncio.sleep(0.01)
            gone.set()
            with pytest.raises(ClientGone):
                await waiting
            log.append("left")
        await later

    asyncio.run(main())
    assert log == ["left", "+b", "-b"] and not len(sessions)


def test_a_line_has_an_end() -> None:
    async def main() -> None:
        sessions = Sessions()
        async with asyncio.TaskGroup() as group:
            for i in range(1 + MAX_WAITING):
                group.create_task(told(sessions, [], str(i), "s", b"k"))
            await asyncio.sleep(0)
            with pytest.raises(CapacityError, match="32 requests of this session wait"):
                await told(sessions, [], "more", "s", b"k")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", TEXT),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
    ],
)
def test_what_a_session_computed_is_kept(path: str, body: dict[str, Any]) -> None:
    read = GENERATES[path].read
    body = {"model": "toy", **body}
    asked = read({**body, "session_id": "s"}, strict=True)
    assert (asked.session, asked.params.cache_ttl) == ("s", SESSION_SECONDS)
    asked = read({**body, "session_id": "s", "cache_ttl": 7}, strict=True)
    assert (asked.session, asked.params.cache_ttl) == ("s", 7)
    plain = read(body, strict=True)
    assert (plain.session, plain.params.cache_ttl) == ("", None)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {**TEXT, "session_id": ""}, "session_id"),
        ("/v1/completions", {**TEXT, "session_id": "s" * 257}, "session_id"),
        ("/v1/completions", {**TEXT, "session_id": "s", "use_beam_search": True}, "session_id"),
        (
            "/v1/responses",
            {"model": "toy", "input": "x", "background": True, "session_id": "s"},
            "session_id",
        ),
    ],
)
def test_where_it_has_no_meaning_it_is_refused(path: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        GENERATES[path].read(body, strict=True)
    assert caught.value.param == param
