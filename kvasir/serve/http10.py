"""Answers to clients older than HTTP/1.1: they know no chunks, so the connection ends a body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def is_older(http_version: str) -> bool:
    return http_version in ("0.9", "1.0")


def without_chunks(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """``app`` for the one request of ``cycle``: a body whose length is not said goes out as it is.

    The connection closes after the answer, and nobody is told to continue (RFC 9110, 10.1.1).
    """
    cycle.keep_alive = False
    cycle.waiting_for_100_continue = False

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_open = False

        async def send_plain(message: Message) -> None:
            nonlocal is_open
            if message["type"] == "http.response.start":
                is_open = all(name != b"content-length" for name, _ in message["headers"])
                cycle.chunked_encoding = False if is_open else None
            elif is_open:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer
