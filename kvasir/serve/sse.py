"""Server-sent events: bytes of one event, and the response that carries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
SILENCE = b": \n\n"
"""A comment, which clients skip: proxies cut what is silent for a minute."""
HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

_json = msgspec.json.Encoder()


def named(name: str, value: Any) -> bytes:
    """An event with a name, as clients may listen for; ``value`` has it as its type, too."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _json.encode(value))


def event(value: Any) -> bytes:
    """One ``data:`` event. The JSON is UTF-8 on one line, so a character is never split between
    events."""
    return b"data: " + _json.encode(value) + b"\n\n"
