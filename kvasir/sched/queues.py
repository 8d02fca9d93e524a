"""Who runs, who waits, and which blocks and slots they hold."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from kvasir.core.errors import KvasirError
from kvasir.core.plan import Copy, SlotOpen, Transfer
from kvasir.sched.holds import Holds
from kvasir.sched.prefix import MAX_WAITS, Found, Prefixes
from kvasir.sched.request import Request
from kvasir.sched.timeline import Timeline

MAX_PASSED = 16
"""Waiting requests that may be passed by later ones while others compute what they need."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A request that starts with the next plan."""

    request: Request
    opening: SlotOpen
    copies: tuple[Copy, ...]
    loads: tuple[Transfer, ...]
    n_swapped: int
    """Tokens that disk gives back after a preemption."""


class Queues:
    """Running and waiting requests, each in order of arrival.

    The latest arrival gives up its blocks first and comes back last, and the oldest always
    advances: no livelock. A request waits behind later ones only while a running one computes the
    block that it needs next, and not for ever.
    """

    def __init__(
        self, prefixes: Prefixes, holds: Holds, max_num_seqs: int, timeline: Timeline
    ) -> None:
        self.prefixes = prefixes
        self._holds = holds
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.n_preemptions = 0
        self._max_num_seqs = max_num_seqs
        self._timeline = timeline
        self._slots = list(range(max_num_seqs - 1, -1, -1))

    def newcomers(self) -> Iterator[Newcomer]:
        """Starts waiting requests, while slots and blocks for their known tokens are available.

        One block per running request is left, so that their next tokens do not preempt the newcomer
        at once.
        """
        cache = self.prefixes.cache
        n_passed = 0
        for request in tuple(islice(self.waiting, MAX_PASSED + len(self._slots))):
            if not self._slots or not request.n_left or n_passed == MAX_PASSED:
                return
            if cache.n_available <= len(self.running) and not self._holds.reclaim():
                return
            found = self._find(request)
            if found.ahead is None:
                n_passed += 1
                continue
            if found.is_coming and request.n_waits < MAX_WAITS:
                request.n_waits += 1
                n_passed += 1
                continue
            if not self.prefixes.fits(request, found, len(self.running)):
                return
            yield self._start(request, found)

    def reserve(self, requests: Sequence[Request]) -> list[Request]:
        """Those of the running ``requests``, oldest first, that have blocks for one more token.

        The latest running requests are preempted for the blocks of older ones. A request whose own
        running step, once committed, gives back blocks that its window has left, waits for it.
        """
        ready = [request for request in requests if self._has_room(request)]
        return [request for request in ready if request.slot >= 0]

    def _has_room(self, request: Request) -> bool:
        table, n_tokens = request.table, request.n_computed + 1
        if n_tokens <= table.n_tokens:
            return True
        if request.slot < 0:
            return False
        while not table.try_grow(n_tokens):
            if self._holds.reclaim():
                continue
            if table.gives_back(request.n_computed) or self._preempt() is request:
                return False
        return True

    def release(self, request: Request) -> None:
        """Forget a finished request. What a running step still writes to its blocks and slot is
        harmless: it is past what is cached, and steps run in order, so it is written before any new
        owner writes."""
        if request.slot < 0:
            self.waiting.remove(request)
            self.prefixes.forget(request)
        else:
            self.running.remove(request)
            self._give_up(request)

    def check(self) -> None:
        """Raises KvasirError unless blocks, slots and order are consistent."""
        self.prefixes.check(self.running)
        for group, pool in enumerate(self.prefixes.cache.pools):
            held = {block for request in self.running for block in request.table.held(group)}
            held |= self._holds.blocks(group)
            if len(held) != pool.n_used:
                raise KvasirError(
                    f"running and held requests have {len(held)} blocks, {pool.n_used} are used"
                )
            if any(request.table.held(group) or request.slot >= 0 for request in self.waiting):
                raise KvasirError("a waiting request holds blocks or a slot")
        slots = sorted(self._slots + [request.slot for request in self.running])
        if slots != list(range(self._max_num_seqs)):
            raise KvasirError(
                f"slots free or running are {slots}, not each of {self._max_num_seqs}"
            )
        for queue in (self.running, self.waiting):
            _check_order(queue)

    def _find(self, request: Request) -> Found:
        """What it would begin with; held blocks are let go until there is room for it."""
        n_spare = len(self.running)
        found = self.prefixes.find(request, n_spare)
        while found.ahead is not None and not self.prefixes.fits(request, found, n_spare):
            if not self._holds.reclaim():
                break
            found = self.prefixes.find(request, n_spare)
        return found

    def _start(self, request: Request, found: Found) -> Newcomer:
        self.waiting.remove(request)
        insort(self.running, request, key=_arrival)
        copy, loads = self.prefixes.start(request, found)
        opening = request.open(self._slots.pop())
        n_swapped = self.prefixes.n_loaded(found) if request.epoch else 0
        return Newcomer(request, opening, (copy,) if copy else (), loads, n_swapped)

    def _preempt(self) -> Request:
        """The latest running request waits again: outputs stay, KV is computed again or cached."""
        victim = self.running.pop()
        self._give_up(victim)
        self._timeline.mark(victim.id, "preempted", victim.n_computed)
        victim.restart()
        older = sum(1 for request in islice(self.waiting, MAX_PASSED) if _is_older(request, victim))
        self.waiting.insert(older, victim)
        self.n_preemptions += 1
        return victim

    def _give_up(self, request: Request) -> None:
        self.prefixes.end(request)
        request.table.release()
        self._slots.append(request.slot)
        request.slot = -1


def _arrival(request: Request) -> int:
    return request.arrival


def _is_older(a: Request, b: Request) -> bool:
    return a.arrival < b.arrival


def _check_order(queue: Sequence[Request] | deque[Request]) -> None:
    arrivals = [request.arrival for request in queue]
    if arrivals != sorted(arrivals):
        raise KvasirError(f"requests are out of order of arrival: {arrivals}")
