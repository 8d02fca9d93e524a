"""OpenAI's ``prediction``: a text that much of the answer is expected to repeat."""

from __future__ import annotations

from typing import Any

from kvasir.core.errors import RequestError
from kvasir.tokenizer.messages import read_content

NAME = "prediction"


def read_prediction(given: dict[str, Any] | None, *, has_beams: bool) -> str:
    """Its text; empty: there is none. Raises RequestError (400)."""
    if given is None:
        return ""
    if has_beams:
        raise RequestError(f"{NAME} does not go together with use_beam_search", param=NAME)
    unknown = sorted(map(str, given.keys() - {"type", "content"}))
    if unknown:
        raise RequestError(f"{NAME} has {unknown[0][:64]!r}: it takes type and content", param=NAME)
    if given.get("type") != "content":
        raise RequestError(f"{NAME}.type must be content", param=f"{NAME}.type")
    return read_content(given.get("content"), f"{NAME}.content")
