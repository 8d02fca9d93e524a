"""What a request says of speculation: whether it is drafted for, and how far. No byte of its answer
depends on that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir.core.errors import RequestError
from kvasir.core.params import SAMPLERS, TokenParams
from kvasir.validation.checks import short
from kvasir.validation.names import OWN, Names

NAME = "speculative"
METHOD, MOST = "method", "num_speculative_tokens"
MAX_MOST = 1_000_000
AS_ENGINE = -1
"""``TokenParams.max_drafts`` of who says nothing."""

Speculative = bool | dict[str, Any] | None


def check_speculative(asked: object, names: Names = OWN) -> None:
    """Raises RequestError (400) on what is no such field, whatever the engine has."""
    if asked is None or isinstance(asked, bool):
        return
    if not isinstance(asked, Mapping):
        raise RequestError(
            f"{NAME} must be true, false or an object, not {type(asked).__name__}", param=NAME
        )
    unknown = [key for key in asked if key not in (METHOD, MOST)]
    if unknown:
        raise RequestError(
            f"{NAME} has {short(unknown[0])}: it takes {METHOD} and {MOST}", param=NAME
        )
    method, most, name = asked.get(METHOD), asked.get(MOST, 0), names.of(f"{NAME}.{MOST}")
    if method is not None and not isinstance(method, str):
        raise RequestError(f"{NAME}.{METHOD} must be a string", param=f"{NAME}.{METHOD}")
    if type(most) is not int or not 0 <= most <= MAX_MOST:
        raise RequestError(
            f"{name} must be an integer from 0 to {MAX_MOST}, not {short(most)}", param=name
        )


def max_drafts(asked: Speculative) -> int:
    """``TokenParams.max_drafts`` of what was checked."""
    if not isinstance(asked, dict):
        return 0 if asked is False else AS_ENGINE
    most: int = asked.get(MOST, AS_ENGINE)
    return most


def check_method(asked: Speculative, drafter: str) -> None:
    """``drafter``: the methods by which the engine drafts, "+" between them; empty: it does not.
    Raises RequestError (400) for another one, and for one of several."""
    method = asked.get(METHOD) if isinstance(asked, dict) else None
    if drafter and method not in (None, drafter):
        remedy = f"leave {METHOD} out" if "+" in drafter else f"use that, or leave {METHOD} out"
        raise RequestError(
            f"{NAME}.{METHOD} is {short(method)}, this engine has {drafter}: {remedy}",
            param=f"{NAME}.{METHOD}",
        )


def speculative_notes(asked: Speculative, drafter: str) -> tuple[str, ...]:
    """Warnings for who wants drafts where nobody drafts."""
    if drafter or not asked or max_drafts(asked) == 0:
        return ()
    return (f"{NAME}: this engine drafts nothing; start it with --speculative-config",)


def beam_notes(drafter: str) -> tuple[str, ...]:
    """What a beam search says of drafts where the engine makes some: it has no timeline."""
    if not drafter:
        return ()
    return (
        f"use_beam_search: this engine drafts by {drafter}, and beams are not drafted: each of "
        "their tokens is a request of its own",
    )


def rule_notes(params: TokenParams, *, follows_drafts: bool) -> tuple[str, ...]:
    """Warnings for who samples where answers depend on what is drafted."""
    if not follows_drafts or not params.max_drafts or params.constraint or _is_greedy(params):
        return ()
    return (
        f"{NAME}: this engine keeps drafts by the classical rule, so a sampled answer depends on "
        f'timing; send "{NAME}": false, or start it without rejection_sample_method',
    )


def _is_greedy(params: TokenParams) -> bool:
    return params.temperature == 0 and "temperature" in (params.samplers or SAMPLERS)
