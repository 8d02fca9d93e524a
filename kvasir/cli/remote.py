"""A model on a server that speaks OpenAI's API, over the standard library's HTTP client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvasir.bench.unreachable import has_port, reason
from kvasir.core.errors import ConfigError, KvasirError
from kvasir.core.params import DrawParams, SamplingParams

Message = dict[str, str]
TIMEOUT_SECONDS = 600.0

SENT = (*DrawParams.__struct_fields__, "seed", "max_tokens", "stop")


class RemoteError(KvasirError):
    """The server is not there, or it answered with an error."""


class RemoteModel:
    """``url`` is the server's root or its /v1; ``model`` None takes the first that it serves."""

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        """Raises ConfigError for an unusable address, RemoteError when no server answers."""
        parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
        if parts.scheme not in ("http", "https") or not parts.hostname or not has_port(parts):
            raise ConfigError(f"--url {url!r}: use http://host:port")
        self._parts = parts
        self._root = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.name = model or self._first_model()

    def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]:
        """The answer in pieces; closing the iterator closes the connection, which cancels it."""
        chosen = {name: value for name in SENT if (value := getattr(params, name)) is not None}
        body = {"model": self.name, "messages": list(messages), "stream": True, **chosen}
        connection, response = self._request("POST", "/chat/completions", body)
        try:
            for line in response:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    yield _piece(data)
        finally:
            connection.close()

    def close(self) -> None:
        """Nothing is held between requests."""

    def _first_model(self) -> str:
        connection, response = self._request("GET", "/models", None)
        try:
            models = _decode(response.read())["data"]
            return str(models[0]["id"])
        except (KeyError, IndexError, TypeError):
            raise RemoteError(f"{self._where()} lists no model: name one") from None
        finally:
            connection.close()

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        secure = self._parts.scheme == "https"
        make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        host = self._parts.hostname or ""
        connection = make(host, self._parts.port, timeout=TIMEOUT_SECONDS)
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, self._root + path, data, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise RemoteError(f"no answer from {self._where()}: {reason(error)}") from None
        if response.status != http.client.OK:
            text = response.read()
            connection.close()
            said = f"{self._where()} answered {response.status}: {_message(text)}"
            if response.status == http.client.NOT_FOUND and body is None:
                said += f" (asked for {self._root}{path}: --url is the root of the API, or its /v1)"
            raise RemoteError(said)
        return connection, response

    def _where(self) -> str:
        return f"{self._parts.scheme}://{self._parts.netloc}"


def _decode(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise RemoteError(
            f"the server sent what is not JSON: {data[:80]!r}: check that --url is Kvasir's, or "
            "another server of OpenAI's API"
        ) from None


def _piece(data: bytes) -> str:
    """The text of one streamed chunk. Raises RemoteError for an error event."""
    chunk = _decode(data)
    if "error" in chunk:
        raise RemoteError(f"the server ended the answer: {_message(data)}")
    choices = chunk.get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""


def _message(data: bytes) -> str:
    """The message of OpenAI's error object, else the start of the text."""
    try:
        return str(msgspec.json.decode(data)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return data[:200].decode("utf-8", "replace").strip()
