"""A model on a server that speaks OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvasir.cli.speaking import LastAnswer
from kvasir.cli.why_text import ask_why
from kvasir.core.errors import RequestError
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
        self.last = LastAnswer()

    def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]:
        """The answer in pieces; closing the iterator closes the connection, which cancels it.
        Raises ServerError, and RequestError where the server refuses the request."""
        chosen = {name: value for name in SENT if (value := getattr(params, name)) is not None}
        streams = {"stream": True, "stream_options": {"include_usage": True}}
        body = {"model": self.name, "messages": list(messages), **streams, **chosen}
        self.last = LastAnswer()
        for event in self._http.events("/v1/chat/completions", body, Stop()):
            self.last.id = str(event.get("id") or self.last.id)
            _note(self.last, event.get("usage") or {})
            yield _piece(event)

    def count(self, messages: Sequence[Message]) -> int:
        """As the server's /tokenize counts. Raises ServerError."""
        body = {"model": self.name, "messages": list(messages)}
        return int(self._http.post("/tokenize", body, Stop())["count"])

    def why(self) -> dict[str, Any]:
        """Raises ServerError, RequestError before the first answer."""
        if not self.last.id:
            raise RequestError("nothing was answered yet")
        return ask_why(self._http, self.last.id)

    def close(self) -> None:
        """Nothing is held between requests."""


def _note(last: LastAnswer, usage: dict[str, Any]) -> None:
    if usage:
        last.n_prompt = int(usage.get("prompt_tokens") or 0)
        last.n_tokens = int(usage.get("completion_tokens") or 0)
        last.n_cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def _piece(event: dict[str, Any]) -> str:
    """The text of one streamed chunk."""
    choices = event.get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""
