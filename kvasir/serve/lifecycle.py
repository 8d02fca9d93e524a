"""Whether the server takes work: starting, ready, draining or failed."""

from __future__ import annotations

from kvasir.core.errors import KvasirError
from kvasir.serve.client import AsyncClient


class Unavailable(KvasirError):
    """The server takes no new work now."""

    status = 503


class Lifecycle:
    """Health as the truth about engine and server. Draining starts once and never ends."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.draining = False

    @property
    def health(self) -> tuple[bool, str]:
        """Whether requests that run can go on, and a word for it."""
        if self._client.state == "dead":
            return False, f"engine is down: {self._client.failure}"
        return self._client.state == "ready", self._client.state

    @property
    def ready(self) -> tuple[bool, str]:
        """Whether new requests are taken, and a word for it."""
        if self.draining:
            return False, "draining"
        return self.health

    def check_open(self) -> None:
        """Raises Unavailable (503) while the server drains."""
        if self.draining:
            raise Unavailable(
                "the server is shutting down: send the request elsewhere", code="draining"
            )
