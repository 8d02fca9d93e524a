"""Who runs, who waits, and which blocks and slots they hold."""

from __future__ import annotations

from collections import deque

from kvasir.core.errors import KvasirError
from kvasir.core.plan import SlotOpen
from kvasir.kv.pool import BlockPool
from kvasir.sched.request import Request


class Queues:
    """Running requests in order of arrival, and behind them the waiting ones in the same order.

    So the latest arrival gives up its blocks first and comes back last, and the oldest always
    advances: no livelock.
    """

    def __init__(self, pool: BlockPool, max_num_seqs: int) -> None:
        self.pool = pool
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.n_preemptions = 0
        self._max_num_seqs = max_num_seqs
        self._slots = list(range(max_num_seqs - 1, -1, -1))

    def admit(self) -> SlotOpen | None:
        """Start the first waiting request if a slot and blocks for its known tokens are free.

        One block per running request stays free, so that their next tokens do not preempt the
        newcomer at once.
        """
        if not self.waiting or not self._slots:
            return None
        request = self.waiting[0]
        n_blocks = request.table.missing(request.n_known)
        if not request.n_left or self.pool.n_free < n_blocks + len(self.running):
            return None
        self.running.append(self.waiting.popleft())
        request.table.grow(request.n_known)
        return request.open(self._slots.pop())

    def reserve(self, request: Request, n_tokens: int) -> bool:
        """Blocks for ``n_tokens`` of a running request, preempting the latest ones for them.

        False when the request itself was the latest.
        """
        while request.table.missing(n_tokens) > self.pool.n_free:
            if self._preempt() is request:
                return False
        request.table.grow(n_tokens)
        return True

    def release(self, request: Request) -> None:
        """Forget a finished request. What a running step still writes to its blocks and slot is
        harmless: steps run in order, so it is written before any new owner writes."""
        if request.slot < 0:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self._give_up(request)

    def check(self) -> None:
        """Raises KvasirError unless blocks, slots and order are consistent."""
        self.pool.check()
        held = sum(len(request.table) for request in self.running)
        if held != self.pool.n_used:
            raise KvasirError(f"running requests hold {held} blocks, {self.pool.n_used} are used")
        if any(len(request.table) or request.slot >= 0 for request in self.waiting):
            raise KvasirError("a waiting request holds blocks or a slot")
        slots = sorted(self._slots + [request.slot for request in self.running])
        if slots != list(range(self._max_num_seqs)):
            raise KvasirError(
                f"slots free or running are {slots}, not each of {self._max_num_seqs}"
            )
        arrivals = [request.arrival for request in (*self.running, *self.waiting)]
        if arrivals != sorted(arrivals):
            raise KvasirError(f"requests are out of order of arrival: {arrivals}")

    def _preempt(self) -> Request:
        """The latest running request waits again, in front: outputs stay, KV is recomputed."""
        victim = self.running.pop()
        self._give_up(victim)
        victim.restart()
        self.waiting.appendleft(victim)
        self.n_preemptions += 1
        return victim

    def _give_up(self, request: Request) -> None:
        request.table.release()
        self._slots.append(request.slot)
        request.slot = -1
