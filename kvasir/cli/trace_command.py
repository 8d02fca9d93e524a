"""Asks a running server for its timeline."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

from kvasir.bench.http_client import get, target_of
from kvasir.bench.report import write
from kvasir.cli.trace import chrome_trace, kv_text, request_text, steps_text


def request_timeline(url: str, api_key: str | None, request: str) -> str:
    """The life of one response. Raises KvasirError when the server does not know it."""
    route = f"/requests/{quote(request, safe='')}/timeline"
    return request_text(asyncio.run(get(target_of(url, api_key), route)))


def kv_cache(url: str, api_key: str | None) -> str:
    """What holds the KV blocks now."""
    return kv_text(asyncio.run(get(target_of(url, api_key), "/kv_cache")))


def step_timeline(url: str, api_key: str | None, n_steps: int, trace: Path | None) -> str:
    """The last steps as text; with ``trace`` they are written there instead."""
    found = asyncio.run(get(target_of(url, api_key), f"/timeline?steps={n_steps}"))
    if trace is None:
        return steps_text(found)
    write(chrome_trace(found), trace)
    return f"{len(found['steps'])} steps written to {trace}\n"
