"""Whose a request is."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.request import PriorityClass
from kvasir.serve.keys.key import OF_CLIENTS, OF_OPERATORS, UNLIMITED, KeyLimits, Scope


class Caller(msgspec.Struct, frozen=True):
    """A key as it holds for one request."""

    key_id: str
    """Empty where the server has no keys."""
    scopes: frozenset[Scope]
    limits: KeyLimits = UNLIMITED

    def check(self, scope: Scope) -> None:
        """Raises RequestError (403)."""
        if scope not in self.scopes:
            raise RequestError(
                f"the key {self.key_id!r} may not do this: it needs the scope {scope}",
                code="insufficient_scope",
                status=403,
            )

    def check_class(self, name: PriorityClass) -> None:
        """Raises RequestError (403)."""
        allowed = self.limits.classes
        if allowed is not None and name not in allowed:
            raise RequestError(
                f"the key {self.key_id!r} may not ask for the class {name}: use "
                f"{' or '.join(allowed) or 'another key'}",
                param="priority_class",
                code="class_not_allowed",
                status=403,
            )


ANYONE = Caller("", frozenset(OF_CLIENTS))
"""Of a server without keys."""
OPERATOR = Caller("", frozenset(OF_OPERATORS))
"""Who reaches the admin socket."""
