"""Answers held to the OpenAPI document."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from jsonschema import Draft202012Validator

from kvasir.serve.app import ROUTES
from kvasir.serve.openapi import document


class Documented:
    """The document of all routes; ``asked`` are the operations that were checked."""

    def __init__(self) -> None:
        self.told: Any = msgspec.json.decode(msgspec.json.encode(document(ROUTES)))
        self.asked: set[tuple[str, str]] = set()

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
        if reply.status_code == 200:
            self.asked.add((method, path))

    def faults(self, schema: Any, value: Any) -> list[str]:
        whole = {**schema, "components": self.told["components"]}
        return [error.message[:300] for error in Draft202012Validator(whole).iter_errors(value)]
