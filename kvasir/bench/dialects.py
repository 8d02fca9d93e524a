"""Streams in each dialect, as they are asked for and counted on a bare socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from kvasir.bench.http_client import Target
from kvasir.core.errors import KvasirError

Json = dict[str, Any]
END = b"0\r\n\r\n"
"""Of a body in chunks."""
READ_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Spoken:
    """A way to ask for a stream."""

    path: str
    mark: bytes
    """What every event that tells text has once, and nothing else has often."""
    body: Callable[[str, str, int], Json]
    """Of the model's name, a prompt and the number of tokens."""


def _chat(model: str, prompt: str, n: int) -> Json:
    fixed = {"temperature": 0, "ignore_eos": True, "stream": True}
    talk = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": talk, "max_tokens": n, **fixed}


def _completion(model: str, prompt: str, n: int) -> Json:
    fixed = {"temperature": 0, "ignore_eos": True, "stream": True}
    return {"model": model, "prompt": prompt, "max_tokens": n, **fixed}


def _response(model: str, prompt: str, n: int) -> Json:
    fixed = {"temperature": 0, "ignore_eos": True, "stream": True, "store": False}
    return {"model": model, "input": prompt, "max_output_tokens": n, **fixed}


def _ollama(model: str, prompt: str, n: int) -> Json:
    talk = [{"role": "user", "content": prompt}]
    options = {"num_predict": n, "temperature": 0}
    return {"model": model, "messages": talk, "options": options, "stream": True}


def _llama(model: str, prompt: str, n: int) -> Json:
    fixed = {"temperature": 0, "ignore_eos": True, "stream": True}
    return {"model": model, "prompt": prompt, "n_predict": n, **fixed}


def _tgi(model: str, prompt: str, n: int) -> Json:
    return {"inputs": prompt, "parameters": {"max_new_tokens": n}}


DIALECTS: Mapping[str, Spoken] = {
    "chat": Spoken("/v1/chat/completions", b'"delta":{"content"', _chat),
    "completions": Spoken("/v1/completions", b'"choices":[', _completion),
    "responses": Spoken("/v1/responses", b"event: response.output_text.delta\n", _response),
    "messages": Spoken("/v1/messages", b"event: content_block_delta\n", _chat),
    "ollama": Spoken("/api/chat", b'"done":false', _ollama),
    "llama-server": Spoken("/completion", b'"stop":false', _llama),
    "tgi": Spoken("/generate_stream", b'"top_tokens":', _tgi),
}


async def listen(target: Target, spoken: Spoken, body: Json, heard: Callable[[int], None]) -> None:
    """Asks for one stream and tells ``heard`` how many events came, as they come. Raises
    KvasirError when it is refused or ends early."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        writer.write(_request(target, spoken.path, msgspec.json.encode(body)))
        status = await reader.readline()
        if b" 200 " not in status:
            said = await reader.read(READ_BYTES)
            raise KvasirError(f"{spoken.path}: the server answered {status!r}: {said[-300:]!r}")
        await _count(reader, spoken.mark, heard)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _count(reader: asyncio.StreamReader, mark: bytes, heard: Callable[[int], None]) -> None:
    rest = b""
    while data := await reader.read(READ_BYTES):
        found = rest + data
        if n := found.count(mark):
            heard(n)
        if found.endswith(END):
            return
        rest = found[found.rfind(mark) + len(mark) if n else 0 :][-len(mark) - len(END) :]
    raise KvasirError("the stream ended early")


def _request(target: Target, path: str, body: bytes) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {target.host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
