"""The memory of request bodies: one budget over all connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvasir.core.errors import KvasirError, RequestError

SMALL_BYTES = 64 * 1024
"""Bodies up to this size are free, so that large ones can never keep small ones out: what they take
is bounded by the number of connections."""
RETRY_SECONDS = 1.0


class BodiesFull(KvasirError):
    """Other bodies take the memory that is there for them."""

    code = "bodies_full"
    status = 503
    retry_after = RETRY_SECONDS


class BodyBudget:
    """Bytes that have arrived or were announced, and are not parsed yet."""

    def __init__(self, limit: int, body_limit: int) -> None:
        """At most ``limit`` bytes in all bodies, ``body_limit`` in one."""
        self.body_limit = body_limit
        self._limit = limit
        self._used = 0

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """The share of one body, given back at the end."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self._used -= share.n_taken

    def take(self, n_bytes: int) -> None:
        """Raises BodiesFull."""
        if self._used + n_bytes > self._limit:
            raise BodiesFull(
                f"bodies of {self._used} bytes are arriving, {n_bytes} more exceed the "
                f"{self._limit} bytes of all: try again, or raise --max-body-memory"
            )
        self._used += n_bytes


class BodyShare:
    """What one body has taken from the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self.n_taken = 0
        self._budget = budget

    def reach(self, n_bytes: int) -> None:
        """The body has, or says that it will have, this many bytes. Raises RequestError (413),
        BodiesFull (503)."""
        if n_bytes > self._budget.body_limit:
            raise RequestError(
                f"the body exceeds {self._budget.body_limit} bytes",
                code="body_too_large",
                status=413,
            )
        if n_bytes > max(SMALL_BYTES, self.n_taken):
            self._budget.take(n_bytes - self.n_taken)
            self.n_taken = n_bytes
