"""Answers held to the OpenAPI document."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from jsonschema import Draft202012Validator

from kvasir.serve.app import ROUTES
from kvasir.serve.openapi import document

STREAMS = ("text/event-stream", "application/x-ndjson")


def events_in(text: str) -> list[Any]:
    """The JSON values of a stream, of either kind; [DONE] is none."""
    lines = [line.removeprefix("data:").strip() for line in text.split("\n")]
    said = [line for line in lines if line and not line.startswith((":", "event:"))]
    return [msgspec.json.decode(line) for line in said if line != "[DONE]"]


class Documented:
    """The document of all routes; ``asked`` are the operations that were checked."""

    def __init__(self) -> None:
        self.told: Any = msgspec.json.decode(msgspec.json.encode(document(ROUTES)))
        self.asked: set[tuple[str, str]] = set()
        self.n_events = 0
        """That were checked."""

    def check(self, method: str, path: str, reply: httpx.Response) -> None:
        """``path`` as the document has it. Raises AssertionError on what it does not say."""
        responses = self.told["paths"][path][method.lower()]["responses"]
        said = responses.get(str(reply.status_code), responses["default"])
        assert "default" in responses and (reply.status_code != 200 or said is responses["200"])
        media = reply.headers["content-type"].partition(";")[0]
        assert media in said["content"], (method, path, media)
        if media == "application/json":
            faults = self.faults(said["content"][media]["schema"], reply.json())
            assert not faults, (method, path, reply.text[:1000], faults)
        if media in STREAMS and reply.status_code == 200:
            self._check_stream(said["content"][media]["schema"], method, path, reply.text)
        if reply.status_code == 200:
            self.asked.add((method, path))

    def event(self, method: str, path: str) -> Any:
        """Schema of an event of the streams there; None where there are none."""
        content = self.told["paths"][path][method.lower()]["responses"]["200"]["content"]
        found = [content[media]["schema"] for media in STREAMS if media in content]
        return found[0]["x-event"] if found else None

    def _check_stream(self, schema: Any, method: str, path: str, text: str) -> None:
        """Of what stands in a stream every value is one that the document has."""
        assert schema["contentMediaType"] in STREAMS
        event = schema["x-event"]
        found = events_in(text)
        assert found
        for value in found:
            self.n_events += 1
            assert not self.faults(event, value), (method, path, value, self.faults(event, value))

    def faults(self, schema: Any, value: Any) -> list[str]:
        whole = {**schema, "components": self.told["components"]}
        return [error.message[:300] for error in Draft202012Validator(whole).iter_errors(value)]
