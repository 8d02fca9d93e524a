"""Streams of JSON objects, one on each line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

_json = msgspec.json.Encoder()


def line(value: Any) -> bytes:
    return _json.encode(value) + b"\n"
