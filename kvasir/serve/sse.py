"""Server-sent events: bytes of one event, and the response that carries them."""

from __future__ import annotations

from typing import Any

import msgspec

from kvasir.serve.parts import Parts, filled

DONE = b"data: [DONE]\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

_json = msgspec.json.Encoder()


def event(value: Any) -> bytes:
    """One ``data:`` event. The JSON is UTF-8 on one line, so a character is never split between
    events."""
    return b"data: " + _json.encode(value) + b"\n\n"


def event_of(value: Any, parts: Parts) -> Parts:
    """The same, with ``parts`` in the HOLE of ``value``."""
    return [b"data: ", *filled(value, parts), b"\n\n"] if parts else [event(value)]
