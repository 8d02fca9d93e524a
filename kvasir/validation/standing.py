"""What a request asks for beside its answer: what it shares, and when it is served."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kvasir.core.errors import RequestError
from kvasir.core.request import PRIORITY_CLASSES, PriorityClass

MAX_SALT = 256
"""Characters of a cache salt."""
MAX_USER = 256
MAX_PRIORITY = 2**31
TIERS: dict[str, PriorityClass] = {
    "auto": "standard",
    "default": "standard",
    "priority": "realtime",
    "flex": "batch",
}
"""OpenAI's service tiers."""


def check_salt(salt: object) -> str:
    """The salt of a request, empty without one. Refuses what is no text, empty or too long."""
    return _text("cache_salt", salt, MAX_SALT)


def check_session(session: object) -> str:
    """What requests that are answered one after another are called; empty without a name."""
    return _text("session_id", session, MAX_USER)


def check_user(user: object, safety_identifier: object = None) -> str:
    """Who asks, empty when nobody says. Requests of one user are of one tenant; the newer name of
    the field counts where both are given."""
    older = _text("user", user or None, MAX_USER)
    return _text("safety_identifier", safety_identifier or None, MAX_USER) or older


def check_priority(priority: object) -> int:
    """Lower numbers go earlier; 0 when nothing is said."""
    if priority is None:
        return 0
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise RequestError(
            f"priority must be a whole number, not {type(priority).__name__}", param="priority"
        )
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise RequestError(
            f"priority must be at least {-MAX_PRIORITY} and at most {MAX_PRIORITY}",
            param="priority",
        )
    return priority


def check_priorities(priorities: Sequence[int] | None, n_prompts: int) -> list[int]:
    """One for each prompt; zeros when nothing is said."""
    if priorities is None:
        return [0] * n_prompts
    if len(priorities) != n_prompts:
        raise RequestError(
            f"{len(priorities)} priorities for {n_prompts} prompts: give one per prompt",
            param="priority",
        )
    return [check_priority(priority) for priority in priorities]


def check_class(priority_class: str | None, service_tier: str | None) -> PriorityClass:
    """The class by its own name or by that of OpenAI's service tier."""
    if service_tier is not None and service_tier not in TIERS:
        raise _not_one_of("service_tier", service_tier, TIERS)
    by_tier = TIERS[service_tier] if service_tier is not None else None
    if priority_class is None:
        return by_tier or "standard"
    named = next((name for name in PRIORITY_CLASSES if name == priority_class), None)
    if named is None:
        raise _not_one_of("priority_class", priority_class, PRIORITY_CLASSES)
    if service_tier not in (None, "auto") and by_tier != named:
        raise RequestError(
            f"service_tier {service_tier!r} and priority_class {named!r} differ: leave one out",
            param="priority_class",
        )
    return named


def _not_one_of(name: str, value: str, known: Iterable[str]) -> RequestError:
    return RequestError(f"{name} {value[:32]!r}: use one of {', '.join(known)}", param=name)


def _text(name: str, value: object, limit: int) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= limit:
        raise RequestError(f"{name} must be text of 1 to {limit} characters", param=name)
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise RequestError(f"{name} holds half of a surrogate pair", param=name)
    return value


def after(now: float, milliseconds: int | None) -> float:
    """When ``milliseconds`` after ``now`` are over; never without a limit."""
    return math.inf if milliseconds is None else now + milliseconds / 1000
