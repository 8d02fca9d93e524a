"""Requests with a time limit: which are refused, and whose time is over."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

from kvasir.core.messages import TokenEvent
from kvasir.timing.outlook import Outlook
from kvasir.timing.timed import Timed

MIN_KEPT = 64
"""Entries of ended requests that may stay before they are swept out."""
SWEPT_AT_ONCE = 4
"""Old entries that are looked at when one is added."""

_Entry = tuple[float, int, Timed]


class Deadlines:
    """Times are seconds of the clock that the scheduler was given.

    An entry for each request, of the limit that comes next, in one of two heaps: when ended ones
    may be half of them the heap becomes the old one, and goes over into a new one entry by entry.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._old: list[_Entry] = []
        self._sweep_at = MIN_KEPT

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    def add(self, request: Timed) -> None:
        self._push(min(request.standing.ttft_by, request.standing.answer_by), request)
        if self._old:
            self._sweep()
        elif len(self._heap) > self._sweep_at:
            self._heap, self._old = [], self._heap

    @property
    def is_idle(self) -> bool:
        """Nothing can expire, whatever the time."""
        return not self._heap and not self._old

    def expired(self, now: float) -> list[tuple[Timed, str]]:
        """Requests whose time is over, and the limit that they missed."""
        late: list[tuple[Timed, str]] = []
        for heap in (self._heap, self._old):
            while heap and heap[0][0] <= now:
                request = heappop(heap)[2]
                if request.finish is not None:
                    continue
                due = request.standing
                if not request.n_outputs and due.ttft_by <= min(now, due.answer_by):
                    late.append((request, "ttft_ms"))
                elif due.answer_by <= now:
                    late.append((request, "deadline_ms"))
                else:
                    self._push(due.answer_by, request)
        return late

    def _sweep(self) -> None:
        for _ in range(min(SWEPT_AT_ONCE, len(self._old))):
            entry = self._old.pop()  # the last of a heap is nobody's parent
            if entry[2].finish is None:
                heappush(self._heap, entry)
        if not self._old:
            self._sweep_at = max(MIN_KEPT, 2 * len(self._heap))

    def _push(self, by: float, request: Timed) -> None:
        if by < inf:
            heappush(self._heap, (by, request.arrival, request))


def exceeded(request: Timed, what: str) -> TokenEvent:
    """The end of a request whose time is over."""
    state = "waited" if request.slot < 0 else "ran"
    return TokenEvent(
        request.id,
        finish="error",
        error=f"{what} is over: the request {state}, "
        f"{min(request.n_computed, request.n_prompt)} of {request.n_prompt} prompt tokens computed "
        f"and {request.n_outputs} tokens drawn; "
        f"allow more time or ask for less",
        error_code="deadline_exceeded",
    )


def unreachable(
    request: Timed, outlook: Outlook, wait: float, step: float, n_cached: int, now: float
) -> TokenEvent | None:
    """Refuses a request that is expected to miss a limit; None when it can be met.

    ``wait``: seconds until it starts. ``step``: seconds of each later token.
    """
    prompt = outlook.prompt_seconds(request, n_cached) + step
    answer = prompt + max(outlook.n_due(request) - 1, 0) * step
    for by, own, what in (
        (request.standing.ttft_by, prompt, "ttft_ms"),
        (request.standing.answer_by, answer, "deadline_ms"),
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
