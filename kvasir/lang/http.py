"""JSON over HTTP with the standard library: one connection a request, cut off to cancel it."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from kvasir.config.addresses import reason, server_address
from kvasir.core.errors import KvasirError, RequestError
from kvasir.lang.stopping import Stop

PATIENCE_SECONDS = 600.0
"""Between two pieces of an answer, where a program has no timeout."""
MAX_ERROR_BYTES = 1 << 20
Json = dict[str, Any]


class ServerError(KvasirError):
    """The server is not there, or it answered with an error."""


class JsonServer:
    """``url`` is the server's root or its /v1."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Raises ConfigError for what is no address."""
        parts = server_address(url)
        self._is_secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._where = f"{parts.scheme}://{parts.netloc}"
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def get(self, path: str) -> Json:
        """Raises ServerError."""
        with self._answer("GET", path, None, Stop()) as response:
            return self._decoded(response.read())

    def text(self, path: str) -> str:
        """What is no JSON. Raises ServerError."""
        with self._answer("GET", path, None, Stop()) as response:
            return response.read().decode("utf-8", "replace")

    def post(self, path: str, body: Json, stop: Stop) -> Json:
        """Raises ServerError, RequestError where the server refuses the request, and what ``stop``
        raises."""
        with self._answer("POST", path, body, stop) as response:
            return self._decoded(response.read())

    def events(self, path: str, body: Json, stop: Stop) -> Iterator[Json]:
        """The events of a stream. Raises as ``post``."""
        with self._answer("POST", path, body, stop) as response:
            for line in response:
                stop.check()
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = self._decoded(data)
                if "error" in event:
                    raise ServerError(f"{self._where} ended the answer: {_message(data)}")
                yield event
        raise ServerError(f"{self._where} ended a stream early")

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Json | None, stop: Stop
    ) -> Iterator[http.client.HTTPResponse]:
        make = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        left = stop.seconds_left
        seconds = PATIENCE_SECONDS if left is None else max(left, 0.001)
        connection = make(self._host, self._port, timeout=seconds)
        try:
            with stop.watching(partial(_cut, connection)):
                try:
                    data = None if body is None else msgspec.json.encode(body)
                    connection.request(method, self._root + path, data, self._headers)
                    response = connection.getresponse()
                    self._check(response, path, is_asked=body is not None)
                    yield response
                except (OSError, http.client.HTTPException) as error:
                    stop.check()
                    said = f"no answer from {self._where}{path}: {reason(error)}"
                    raise ServerError(said) from None
        finally:
            connection.close()

    def _check(self, response: http.client.HTTPResponse, path: str, *, is_asked: bool) -> None:
        """``is_asked``: the request says something that can be wrong."""
        if response.status == http.client.OK:
            return
        said = _message(response.read(MAX_ERROR_BYTES))
        text = f"{self._where}{self._root}{path} answered {response.status}: {said}"
        if 400 <= response.status < 500 and is_asked:
            raise RequestError(text, status=response.status)
        if response.status == http.client.NOT_FOUND:
            text += " (the address is the root of the API, or its /v1)"
        raise ServerError(text)

    def _decoded(self, data: bytes) -> Json:
        try:
            return msgspec.json.decode(data, type=Json)
        except msgspec.DecodeError:
            raise ServerError(
                f"{self._where} sent what is not JSON: {data[:80]!r}: check that the address is "
                "Kvasir's, or another server's of OpenAI's API"
            ) from None


def _cut(connection: http.client.HTTPConnection) -> None:
    """Whoever reads from it gets an end."""
    sock = connection.sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _message(data: bytes) -> str:
    """The message of OpenAI's error object, else the start of the text."""
    try:
        return str(msgspec.json.decode(data)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return data[:200].decode("utf-8", "replace").strip()


def first_model(server: JsonServer) -> str:
    """The name of the first model that it serves. Raises ServerError."""
    try:
        return str(server.get("/v1/models")["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ServerError("the server lists no model: name one") from None
