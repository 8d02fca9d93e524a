"""Requests with a time limit: which are refused, and whose time is over."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from kvasir.core.messages import TokenEvent
from kvasir.sched.outlook import Outlook
from kvasir.sched.request import Request

MIN_KEPT = 64
"""Entries of ended requests that may stay before they are swept out."""


class Deadlines:
    """Times are seconds of the clock that the scheduler was given."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, Request]] = []
        self._sweep_at = MIN_KEPT

    def add(self, request: Request) -> None:
        for by, what in ((request.ttft_by, "ttft_ms"), (request.answer_by, "deadline_ms")):
            if by < inf:
                heappush(self._heap, (by, request.arrival, what, request))
        if len(self._heap) > self._sweep_at:
            self._heap = [item for item in self._heap if item[3].finish is None]
            heapify(self._heap)
            self._sweep_at = max(MIN_KEPT, 2 * len(self._heap))

    @property
    def is_idle(self) -> bool:
        """Nothing can expire, whatever the time."""
        return not self._heap

    def expired(self, now: float) -> list[tuple[Request, str]]:
        """Requests whose time is over, and the limit that they missed."""
        late: dict[Request, str] = {}
        while self._heap and self._heap[0][0] <= now:
            _, _, what, request = heappop(self._heap)
            if request.finish is None and not (what == "ttft_ms" and request.n_outputs):
                late.setdefault(request, what)
        return list(late.items())


def exceeded(request: Request, what: str) -> TokenEvent:
    """The end of a request whose time is over."""
    state = "waited" if request.slot < 0 else "ran"
    return TokenEvent(
        request.id,
        finish="error",
        error=f"{what} is over: the request {state}, {request.n_computed} of "
        f"{request.n_prompt} prompt tokens computed and {request.n_outputs} tokens drawn; "
        f"allow more time or ask for less",
        error_code="deadline_exceeded",
    )


def unreachable(
    request: Request, outlook: Outlook, wait: float, step: float, n_cached: int, now: float
) -> TokenEvent | None:
    """Refuses a request that is expected to miss a limit; None when it can be met.

    ``wait``: seconds until it starts. ``step``: seconds of each later token.
    """
    prompt = outlook.prompt_seconds(request, n_cached) + step
    answer = prompt + max(outlook.n_due(request) - 1, 0) * step
    for by, own, what in (
        (request.ttft_by, prompt, "ttft_ms"),
        (request.answer_by, answer, "deadline_ms"),
    ):
        if now + wait + own > by:
            return TokenEvent(
                request.id,
                finish="error",
                error=f"{what} leaves {_ms(by - now)} ms, but the request is expected to wait "
                f"{_ms(wait)} ms and to take {_ms(own)} ms: allow more time, ask for less"
                + (", or try again later" if now + own <= by else ""),
                error_code="deadline_unreachable",
                retry_after=wait + own - (by - now) if now + own <= by else 0.0,
            )
    return None


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
