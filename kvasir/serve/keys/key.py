"""An API key as it is kept: what it allows, and digests of its secrets.

A secret is 256 random bits, so its SHA-256 says nothing about it: there is no list of likely ones
to try, which is what slow hashes are for, and a fast one costs a request a microsecond.
"""

from __future__ import annotations

from hashlib import sha256
from secrets import token_urlsafe
from typing import Annotated, Literal

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.request import PriorityClass

Scope = Literal["inference", "state", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = ("inference", "state", "metrics", "admin")
OF_CLIENTS: tuple[Scope, ...] = ("inference", "state", "metrics")
"""What the key of ``--api-key`` may do, or anyone where there are no keys."""
OF_OPERATORS: tuple[Scope, ...] = ("admin",)
DEFAULT_SCOPES: tuple[Scope, ...] = ("inference", "state")
API_KEY, ADMIN_KEY = "api-key", "admin-key"
"""Ids of the keys that options name: no others have them."""
MAX_KEYS = 2_000
"""Revoked ones included: to read them again takes 5 ms of the event loop."""
MAX_SECRETS = 8
"""Of one key, while rotations overlap."""
SECRET_BYTES = 32
PREFIX = "kvasir-"
"""Of secrets: whoever finds one in a file knows what it is."""

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Time = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Unix time, seconds."""
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]


class KeyLimits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """None is no limit beyond the server's own."""

    requests_per_minute: Count | None = None
    concurrency: Count | None = None
    """Requests that are answered at a time."""
    n: Count | None = None
    """Choices of one request, over all its prompts."""
    prompt_tokens: Count | None = None
    """Of all prompts of one request."""
    classes: tuple[PriorityClass, ...] | None = None


UNLIMITED = KeyLimits()


class Secret(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    expires: Time | None = None


class Key(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """``id`` is no secret, and never given to another key: what its requests left is its own."""

    id: Name
    scopes: tuple[Scope, ...]
    secrets: tuple[Secret, ...]
    created: Time
    expires: Time | None = None
    revoked: Time | None = None
    limits: KeyLimits = UNLIMITED

    def state(self, now: float) -> Literal["active", "expired", "revoked"]:
        if self.revoked is not None:
            return "revoked"
        return "expired" if is_over(self.expires, now) else "active"


Keys = dict[str, Key]
"""By id, in the order of their making."""


def digest(secret: bytes) -> str:
    return sha256(secret).hexdigest()


def is_over(expires: int | None, now: float) -> bool:
    return expires is not None and now >= expires


def create(keys: Keys, made: Key) -> tuple[Keys, str]:
    """With one more, and its secret. Raises RequestError (409) when the id was ever used, or there
    are too many."""
    if made.id in keys or made.id in (API_KEY, ADMIN_KEY):
        raise RequestError(
            f"the id {made.id!r} is or was another key's: ids are not used twice, choose another",
            param="id",
            code="key_exists",
            status=409,
        )
    if len(keys) >= MAX_KEYS:
        raise RequestError(
            f"there are {len(keys)} keys, revoked ones included, the most are {MAX_KEYS}: "
            "rotate keys, or take revoked ones out of the file",
            code="too_many_keys",
            status=409,
        )
    secret = new_secret()
    kept = msgspec.structs.replace(made, secrets=(Secret(digest(secret.encode())),))
    return {**keys, made.id: kept}, secret


def rotate(keys: Keys, key_id: str, overlap: int, now: int) -> tuple[Keys, str]:
    """With a new secret; the older ones hold for ``overlap`` seconds more at most. Raises
    RequestError (404, 409)."""
    key = find(keys, key_id)
    if key.state(now) != "active":
        raise RequestError(
            f"the key {key_id!r} is {key.state(now)}: create another",
            param="id",
            code="key_not_active",
            status=409,
        )
    older = [ended(secret, now + overlap) for secret in key.secrets]
    kept = [secret for secret in older if not is_over(secret.expires, now)][1 - MAX_SECRETS :]
    secret = new_secret()
    secrets = (*kept, Secret(digest(secret.encode())))
    return {**keys, key_id: msgspec.structs.replace(key, secrets=secrets)}, secret


def revoke(keys: Keys, key_id: str, now: int) -> tuple[Keys, Key]:
    """With one that holds no longer, and that. Its id stays taken. Raises RequestError (404)."""
    key = find(keys, key_id)
    at = now if key.revoked is None else key.revoked
    revoked = msgspec.structs.replace(key, revoked=at, secrets=())
    return {**keys, key_id: revoked}, revoked


def find(keys: Keys, key_id: str) -> Key:
    """Raises RequestError (404)."""
    found = keys.get(key_id)
    if found is None:
        raise RequestError(
            f"there is no key {key_id[:64]!r}", param="id", code="not_found", status=404
        )
    return found


def described(key: Key, now: float) -> dict[str, object]:
    """All but its digests, for JSON."""
    return {
        "object": "key",
        "id": key.id,
        "state": key.state(now),
        "scopes": key.scopes,
        "created": key.created,
        "expires": key.expires,
        "revoked": key.revoked,
        "secrets": sum(not is_over(secret.expires, now) for secret in key.secrets),
        "limits": key.limits,
    }


def ended(secret: Secret, at: int) -> Secret:
    """Not later than ``at``."""
    return Secret(secret.sha256, at if secret.expires is None else min(secret.expires, at))


def new_secret() -> str:
    return PREFIX + token_urlsafe(SECRET_BYTES)
