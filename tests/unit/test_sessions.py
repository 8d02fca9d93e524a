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
from kvasir.serve.sessions import IDLE_SECONDS, MAX_OPEN, MAX_RAN, MAX_WAITING, Ran, Sessions

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


def test_sessions_are_opened_and_closed() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    name = sessions.open(b"k", "", 10)
    assert name.startswith("session-")
    assert sessions.open(b"k", "mine", 10) == "mine"
    with pytest.raises(RequestError) as caught:
        sessions.open(b"k", "mine", 10)
    assert (caught.value.status, caught.value.code) == (409, "session_exists")
    assert sessions.open(b"another", "mine", 5) == "mine"
    sessions.check(b"k", "mine", 10)
    sessions.check(b"k", "never opened", 10**9)
    with pytest.raises(RequestError, match="11 characters, the session was opened for 10"):
        sessions.check(b"k", "mine", 11)
    for i in range(MAX_RAN + 2):
        sessions.ran(b"k", "mine", Ran("m", range(i, i + 1)))
    ran = sessions.close(b"k", "mine")
    assert (len(ran), ran[0].ids, ran[-1].ids) == (MAX_RAN, range(2, 3), range(65, 66))
    with pytest.raises(RequestError) as caught:
        sessions.close(b"k", "mine")
    assert caught.value.status == 404
    now = IDLE_SECONDS + 1
    sessions.check(b"another", "mine", 5)
    assert sessions.open(b"k", name, 10) == name, "nobody used it"
    assert sessions.close(b"another", "mine") == ()


def test_who_opens_all_keeps_nobody_out() -> None:
    sessions = Sessions()
    for _ in range(MAX_OPEN):
        sessions.open(b"k", "", 1)
    with pytest.raises(CapacityError) as caught:
        sessions.open(b"k", "", 1)
    assert caught.value.code == "too_many_sessions"
    assert sessions.open(b"another", "mine", 1) == "mine"
