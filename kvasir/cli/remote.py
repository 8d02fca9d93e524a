"""A model on a server that speaks OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvasir.core.params import DrawParams
from kvasir.lang.http import JsonServer, first_model
from kvasir.lang.stopping import Stop
from kvasir.validation.sampling import SamplingParams

Message = dict[str, Any]

SENT = (*DrawParams.__struct_fields__, "seed", "max_tokens", "stop")


class RemoteModel:
    """``url`` is the server's root or its /v1; ``model`` None takes the first that it serves."""

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        """Raises ConfigError for an unusable address, ServerError when no server answers."""
        self._http = JsonServer(url, api_key)
        self.name = model or first_model(self._http)

    def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]:
        """The answer in pieces; closing the iterator closes the connection, which cancels it.
        Raises ServerError, and RequestError where the server refuses the request."""
        chosen = {name: value for name in SENT if (value := getattr(params, name)) is not None}
        body = {"model": self.name, "messages": list(messages), "stream": True, **chosen}
        for event in self._http.events("/v1/chat/completions", body, Stop()):
            yield _piece(event)

    def close(self) -> None:
        """Nothing is held between requests."""


def _piece(event: dict[str, Any]) -> str:
    """The text of one streamed chunk."""
    choices = event.get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""
