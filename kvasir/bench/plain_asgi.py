"""An ASGI application that streams events which are made already: ``python -m ... PORT``.

What a server in Python costs at least, with the same libraries: all streams send an event at each
tick, as an engine's step brings one to each.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import uvicorn

TICK_SECONDS = 0.04
PAYLOAD = {
    "id": "chatcmpl-0123456789abcdef0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1_700_000_000,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
}
EVENT = b"data: " + msgspec.json.encode(PAYLOAD) + b"\n\n"


class Ticker:
    """Wakes all who wait, again and again."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            woken, self._next = self._next, asyncio.Event()
            woken.set()

    async def wait(self) -> None:
        await self._next.wait()


async def _body(receive: Any) -> bytearray:
    found = bytearray()
    while True:
        message = await receive()
        found += message.get("body", b"")
        if not message.get("more_body"):
            return found


def application(ticker: Ticker) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked = msgspec.json.decode(await _body(receive))
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(asked["max_tokens"]):
            await ticker.wait()
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


async def serve(port: int) -> None:
    ticker = Ticker()
    options: Any = {"log_level": "warning", "lifespan": "off", "http": "httptools"}
    server = uvicorn.Server(uvicorn.Config(application(ticker), port=port, **options))
    ticking = asyncio.create_task(ticker.run())
    await server.serve()
    ticking.cancel()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1])))
