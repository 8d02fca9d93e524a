"""OpenAI's ``prediction``: a text that much of the answer is expected to repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvasir.config.speculation import LOOKUPS
from kvasir.core.errors import RequestError
from kvasir.tokenizer.messages import read_content

NAME = "prediction"


def read_prediction(given: Mapping[str, Any] | None, *, has_beams: bool = False) -> str:
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


def read_predictions(given: object, n_prompts: int) -> list[str]:
    """One for each prompt, of a text or OpenAI's object for all, or of a list of these and None.
    Raises RequestError."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        return [_text(given)] * n_prompts
    if len(given) != n_prompts:
        raise RequestError(
            f"{len(given)} predictions for {n_prompts} prompts: give one, or one per prompt",
            param=NAME,
        )
    return [_text(one) for one in given]


def why_useless(drafter: str, max_drafts: int) -> str:
    """Why no drafts can come of one; empty where they can. ``drafter``: the methods by which the
    engine drafts, "+" between them; ``max_drafts``: as in ``TokenParams``."""
    if not {*drafter.split("+")} & {*LOOKUPS}:
        return (
            f"{NAME} is of no use: this engine does not look texts up; start it with "
            f"--speculative-config and a method of {', '.join(LOOKUPS)}"
        )
    return "" if max_drafts else f"{NAME} is of no use: speculative asks for no drafts"


def check_length(n_tokens: int, limit: int) -> None:
    """Raises RequestError (400) for more tokens than a prompt may have."""
    if n_tokens > limit:
        raise RequestError(
            f"{NAME} has {n_tokens} tokens, the context holds {limit}: shorten it", param=NAME
        )


def _text(given: object) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, Mapping):
        raise RequestError(
            f"{NAME} must be a text, an object or a list of these, not {type(given).__name__}",
            param=NAME,
        )
    return read_prediction(given)
