"""How long a prompt may be, and what is left of one that is longer."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.serve.admission import AdmissionLimits
from kvasir.serve.asked import Asked, Prompt
from kvasir.serve.resolved import Ids
from kvasir.validation.params import truncate_prompt

MAX_TRUNCATED = 8
"""Contexts that a prompt may have which is truncated to one."""


def room_of(asked: Asked, info: Ready) -> int:
    """Tokens of the whole context. Raises RequestError (400)."""
    if asked.room is None:
        return info.max_model_len
    if not 0 < asked.room <= info.max_model_len:
        name = asked.names.of("room")
        raise RequestError(
            f"{name} is {asked.room}, the context holds {info.max_model_len}: lower it or leave it "
            "out",
            param=name,
        )
    return asked.room


def readable(asked: Asked, info: Ready) -> int:
    """Tokens that a prompt may have before it is truncated."""
    is_cut = asked.drops_start or asked.params.truncate_prompt_tokens is not None
    return info.max_model_len * (MAX_TRUNCATED if is_cut else 1)


def shortened(prompt: Ids, asked: Asked, info: Ready) -> Ids:
    """What is left of ``prompt`` where it may be truncated."""
    params = asked.params
    if asked.drops_start:
        most = max(1, room_of(asked, info) - (params.max_tokens or 1))
        params = structs.replace(params, truncate_prompt_tokens=most)
    return truncate_prompt(prompt, params)


def check_count(prompts: Sequence[Prompt], limit: int, limits: AdmissionLimits) -> None:
    """Refuses a list that is too long before anybody walks through it."""
    n = max(len(prompts), len(prompts[0]) if isinstance(prompts[0], tuple) else 0)
    if n > max(limit, limits.n_choices):
        raise RequestError(
            f"the context holds {limit} tokens and a request {limits.n_choices} prompts, prompt "
            f"lists {n}: shorten it",
            param="prompt",
            code="context_length_exceeded",
        )
