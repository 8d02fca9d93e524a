"""What holds the event loop: requests that come together, garbage; and how that is measured."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from kvasir.serve.arrivals import ARRIVED, in_turns
from kvasir.serve.connections import Connections
from kvasir.serve.http_limits import HttpLimits
from kvasir.serve.http_protocol import BoundedHttpProtocol
from kvasir.serve.http_server import HttpServer
from kvasir.serve.lag import measure_lag
from kvasir.serve.slices import Slices


def scope(path: str) -> dict[str, Any]:
    return {"type": "http", "path": path, "raw_path": path.encode()}


def test_a_pass_of_the_loop_begins_no_more_requests_than_its_slice_has_time_for() -> None:
    async def run() -> None:
        now = [0.0]
        begun: list[str] = []
        n_in_pass: list[int] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            now[0] += 0.4  # of a slice of one second
            begun.append(scope["path"])
            assert scope["path"] == "/health" or scope[ARRIVED] <= time.monotonic()

        turned: Any = in_turns(app, Slices(1.0, lambda: now[0]))
        names = [f"/{i}" for i in range(20)]
        asked = [asyncio.create_task(turned(scope(name), None, None)) for name in names]
        while not all(task.done() for task in asked):
            before = len(begun)
            await asyncio.sleep(0)
            n_in_pass.append(len(begun) - before)
        assert begun == names
        assert max(n_in_pass) == 3

    asyncio.run(run())


def test_health_waits_for_nobody() -> None:
    async def run() -> None:
        begun: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            begun.append(scope["path"])

        slices = Slices(1.0, lambda: 0.0)
        turned: Any = in_turns(app, slices)
        async with slices._turn:
            waits = asyncio.create_task(turned(scope("/v1/models"), None, None))
            await turned(scope("/health"), None, None)
            assert begun == ["/health"]
        await waits
        assert begun == ["/health", "/v1/models"]

    asyncio.run(run())


class Transport:
    def __init__(self) -> None:
        self.is_closed = False

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def write(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 200")

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def answer(scope: Any, receive: Any, send: Any) -> None:
    length = (b"content-length", b"0")
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": b""})


def test_a_connection_that_ended_is_gone_without_a_collection_of_garbage() -> None:
    """What there would be to collect is looked for seldom."""

    async def run() -> weakref.ref[BoundedHttpProtocol]:
        config, transport = uvicorn.Config(answer, lifespan="off", log_config=None), Transport()
        config.load()
        limits, table = HttpLimits(*[1000] * 8), Connections(8)
        protocol = BoundedHttpProtocol(config, ServerState(), {}, limits=limits, connections=table)
        protocol.connection_made(transport)  # type: ignore[arg-type]
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.sleep(0.01)
        assert len(table) == 1
        protocol.connection_lost(None)
        await asyncio.sleep(0)
        assert transport.is_closed
        assert len(table) == 0
        return weakref.ref(protocol)

    gc.disable()
    try:
        assert asyncio.run(run())() is None
    finally:
        gc.enable()


def test_a_server_ends_when_it_is_told_and_not_at_its_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvasir.serve.http_server.DATE_SECONDS", 3600)

    async def run() -> None:
        server = HttpServer(uvicorn.Config(answer, lifespan="off", log_config=None))
        server.config.load()
        running = asyncio.create_task(server.main_loop())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not running.done()
        server.end()
        await asyncio.wait_for(running, 60)

    asyncio.run(run())


def test_the_lag_of_the_loop_is_what_it_was_held_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look is late by itself for as long, and none comes after the end."""
    monkeypatch.setattr("kvasir.serve.lag.PERIOD", 0.001)

    async def run() -> list[float]:
        found: list[float] = []
        measuring = asyncio.create_task(measure_lag(found.append))
        while len(found) < 3:
            await asyncio.sleep(0.001)
        time.sleep(0.2)
        n = len(found)
        while len(found) == n:
            await asyncio.sleep(0.001)
        measuring.cancel()
        await asyncio.wait([measuring])
        n = len(found)
        await asyncio.sleep(0.02)
        assert len(found) == n
        return found

    found = asyncio.run(run())
    assert min(found) >= 0
    assert max(found) >= 0.19
