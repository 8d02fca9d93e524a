"""More of a response that has begun, written without waiting and without a task."""

from __future__ import annotations

import weakref

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "kvasir.chunks"
"""Where a scope has the chunks of its response."""


class Chunks:
    """Of one response whose length is not known (RFC 9112, 7.1)."""

    __slots__ = ("_cycle", "n_bytes")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = weakref.ref(cycle)  # which has the scope that has this
        self.n_bytes = 0
        """Written so far, without what frames them."""

    def takes_events(self) -> bool:
        """Whether the response has begun, goes out in chunks, and its client takes what there is.
        Who writes otherwise waits, or finds that nobody listens."""
        cycle = self._cycle()
        return cycle is not None and not (
            cycle.flow.write_paused
            or cycle.disconnected
            or cycle.response_complete
            or not cycle.response_started
            or not cycle.chunked_encoding
        )

    def tell(self, data: bytes) -> None:
        """``data``, not empty, while they are taken."""
        cycle = self._cycle()
        if cycle is not None:
            self.n_bytes += len(data)
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
