"""One streamed completion over a bare socket: nothing between the clock and the bytes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvasir.config.addresses import reason, server_address
from kvasir.core.errors import KvasirError


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    path: str
    """Prefix of every route, such as /v1."""
    api_key: str | None = None


@dataclass(slots=True)
class TimedAnswer:
    """What came back: seconds since the request was sent, for every token."""

    started: float
    tokens: list[float] = field(default_factory=list)
    error: str = ""
    n_prompt: int = 0
    """Its tokens, as the server counts."""


def target_of(url: str, api_key: str | None = None) -> Target:
    """Raises ConfigError for what is not http://host:port[/v1]."""
    parts = server_address(url, ("http",))
    path = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
    return Target(parts.hostname or "", parts.port or 80, path, api_key)


async def complete(
    target: Target, body: dict[str, Any], route: str = "/completions"
) -> TimedAnswer:
    """Posts a streamed completion and times its tokens. Failures are told in ``error``."""
    answer = TimedAnswer(time.perf_counter())
    try:
        reader, writer = await asyncio.open_connection(target.host, target.port)
    except OSError as error:
        answer.error = reason(error)
        return answer
    try:
        writer.write(_request(target, "POST", route, msgspec.json.encode(body), "1.1"))
        await _read_stream(reader, answer)
    except (OSError, KvasirError, asyncio.IncompleteReadError) as error:
        answer.error = str(error)
    finally:
        writer.close()
    return answer


async def get(target: Target, route: str) -> Any:
    """A JSON document. Raises KvasirError when the server is not there or refuses."""
    try:
        reader, writer = await asyncio.open_connection(target.host, target.port)
    except OSError as error:
        where = f"{target.host}:{target.port}"
        raise KvasirError(f"no answer from {where}: {reason(error)}") from None
    try:
        # In HTTP/1.0 nothing frames the document but its end.
        writer.write(_request(target, "GET", route, b"", "1.0"))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/"):
            raise KvasirError(
                f"{target.host}:{target.port} does not speak HTTP: check the port in --url"
            )
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise KvasirError(f"{route}: the server answered {head[:60]!r}")
        return msgspec.json.decode(body)
    finally:
        writer.close()


def _request(target: Target, method: str, route: str, body: bytes, version: str) -> bytes:
    lines = [
        f"{method} {target.path}{route} HTTP/{version}",
        f"Host: {target.host}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if target.api_key:
        lines.append(f"Authorization: Bearer {target.api_key}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _read_stream(reader: asyncio.StreamReader, answer: TimedAnswer) -> None:
    status = await reader.readline()
    if b" 200 " not in status:
        raise KvasirError(await _refusal(reader))
    while line := await reader.readline():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk = msgspec.json.decode(data)
        if "error" in chunk:
            raise KvasirError(str(chunk["error"].get("message", chunk["error"])))
        n_new = tokens_so_far(chunk, len(answer.tokens)) - len(answer.tokens)
        answer.n_prompt = max(answer.n_prompt, prompt_tokens(chunk))
        answer.tokens += [time.perf_counter() - answer.started] * n_new
    raise KvasirError("the stream ended early")


async def _refusal(reader: asyncio.StreamReader) -> str:
    """The end of what a server said instead of a stream, at most 4 KiB of it."""
    try:
        said = await reader.readexactly(4096)
    except asyncio.IncompleteReadError as ended:
        said = ended.partial
    return said.decode("utf-8", "replace")[-200:] or "no answer"


def tokens_so_far(chunk: dict[str, Any], before: int) -> int:
    """Output tokens up to and with this chunk: the server's own count, else 1 for every text."""
    usage = chunk.get("usage")
    if usage is not None:
        return max(before, int(usage["completion_tokens"]))
    choices = chunk.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return before + bool(choices[0].get("text") or delta.get("content"))


def prompt_tokens(chunk: dict[str, Any]) -> int:
    """As its usage has it; 0 without."""
    return int((chunk.get("usage") or {}).get("prompt_tokens") or 0)
