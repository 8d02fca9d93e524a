"""Whether the server takes work: starting, ready, restarting, asleep, draining or failed."""

from __future__ import annotations

from kvasir.core.errors import KvasirError
from kvasir.serve.client import AsyncClient

WELL = ("ready", "asleep", "waking")
"""States in which nothing is wrong: whoever asks wakes an engine that sleeps."""


class Unavailable(KvasirError):
    """The server takes no new work now."""

    status = 503


class Lifecycle:
    """Health as the truth about engine and server. Leaving and draining start once and never
    end."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.leaving = False
        """Whether new requests should go elsewhere."""
        self.draining = False
        """Whether they are refused."""

    @property
    def health(self) -> tuple[bool, str]:
        """Whether requests that run can go on, and a word for it."""
        if self._client.state == "dead":
            return False, f"engine is down: {self._client.failure}"
        if self._client.state == "restarting":
            return False, f"engine restarts: {self._client.failure}"
        return self._client.state in WELL, self._client.state

    @property
    def ready(self) -> tuple[bool, str]:
        """Whether new requests are taken, and a word for it."""
        if self.leaving:
            return False, "draining"
        if self._client.is_held:
            return False, "asleep"
        if self._client.gate.is_closed:
            return False, "paused"
        return self.health

    def check_open(self) -> None:
        """Raises Unavailable (503) while the server drains."""
        if self.draining:
            raise Unavailable(
                "the server is shutting down: send the request elsewhere", code="draining"
            )
