"""Who runs, who waits, and which blocks and slots they hold."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import attrgetter

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.errors import KvasirError
from kvasir.core.messages import EngineStats
from kvasir.core.request import LOWEST
from kvasir.kv.manager import KVCacheManager, Match
from kvasir.sched.making import Making
from kvasir.sched.order import Account, Order
from kvasir.sched.preempt import slots_for
from kvasir.sched.request import Request
from kvasir.timing.records import ITS_TURN
from kvasir.timing.timeline import Timeline

_SENIORITY = attrgetter("seniority")
PLACELESS_SECONDS = 1.0
"""After which a tenant without any slot takes one: most become free sooner, and what gives way is
computed again."""
MAX_WAITS = 256
"""Plans that a request waits, in all, for others that compute what it needs next."""


class Queues:
    """Running requests in the order of their seniority; the order holds the waiting ones.

    The order says who gives up blocks first; the most senior always advances: no livelock.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        order: Order,
        account: Account,
        timeline: Timeline,
        counters: EngineStats,
        config: SchedulerConfig,
    ) -> None:
        self._kv = kv
        self.running: list[Request] = []
        self.waiting = order
        self._account = account
        self._counters = counters
        self._making = Making(0)
        self._max_num_seqs = n_slots = config.sizes.max_num_seqs
        self._patience = config.sharing.preemption_threshold
        """Seconds that a request of the highest class waits before it takes what the lowest one
        holds."""
        self._holds_all = config.sharing.kv_policy == "contiguous"
        """Blocks for the longest answer are taken when a request starts."""
        self._spans = bool(config.span_tokens)
        """Tokens of a tile see each other."""
        self._timeline = timeline
        self._slots = list(range(n_slots - 1, -1, -1))
        self._refused: dict[Request, bool] = {}
        self._is_urgent = False
        self._looked_at: dict[Request, int] = {}
        """Tokens that were found for who waits, when this plan first looked."""
        self.n_places = n_slots
        """Requests that can run at a time: fewer than slots when the last plan lacked blocks."""

    def begin(self, making: Making) -> None:
        """What could not start in the last plan may in this one."""
        self._making = making
        self._refused.clear()
        self._looked_at.clear()
        self.n_places = self._max_num_seqs
        self._is_urgent = False

    def start_urgent(self) -> Request | None:
        """Starts a request of the highest class that has waited too long, in the place of requests
        of the lowest class if it must."""
        request = self.waiting.urgent()
        if request is None or not request.n_left:
            return None
        if self._timeline.clock() - request.turn.since < self._patience:
            return None
        found = self._match(request)
        if self._waits_for_another(request, found):
            return None
        while found.on_disk is not None and not (self._slots and found.fits):
            if not self.running or self.running[-1].rank != LOWEST:
                self._is_urgent = True
                return None
            self._preempt(self.waiting.gives_way(self.running), ITS_TURN)
            found = self._match(request)
        if found.on_disk is None:  # nobody gives way before its blocks are read; its room is kept
            self._is_urgent = True
            return None
        return self._start(request, found)

    def start_placeless(self) -> Request | None:
        """Starts a request whose tenant runs nothing, after ``PLACELESS_SECONDS`` of waiting, in
        the place of one of a tenant that has several slots: nobody waits for the ends of another's
        answers, however long they are, nor for who may have none of them."""
        if self._slots:
            return None
        now = self._timeline.clock()
        due = [
            request
            for request in self.waiting.placeless()
            if request.n_left and now - request.turn.since >= PLACELESS_SECONDS
        ]
        for request, victim in slots_for(due, self.running, self.waiting.takes_slot) if due else ():
            if victim.slot in self._making.opened:
                continue
            if self._startable(request, may_reclaim=True) is not None:
                self._preempt(victim, ITS_TURN)
                return self._start(request, self._match(request))
        return None

    def start_next(self) -> Request | None:
        """Starts the waiting request whose turn it is among those for whose known tokens blocks are
        available, and that the step takes on.

        One block per running request is left, so that their next tokens do not preempt it at once.
        None when no request can start.
        """
        chosen = self._choose()
        if chosen is not None:
            return self._start(*chosen)
        if self._slots and self.running and self._lacks_blocks():
            self.n_places = len(self.running)
        return None

    def reserve(self, requests: Sequence[Request]) -> list[Request]:
        """Those of the running ``requests``, oldest first, that have blocks for one more token.

        Running requests are preempted for others, but for those that this plan starts. A request
        waits for a plan that, once committed, gives back what it lacks: its own that a window
        leaves behind, and, when it is alone, what copies are made from.
        """
        before, size, spans = self._counters.n_preemptions, self._kv.cache.block_size, self._spans
        # inside a block there is room, without a look at the table
        ready = [
            x
            for x in requests
            if (x.n_computed % size and not (spans and x.tiles.are_spans)) or self._has_room(x)
        ]
        has_preempted = self._counters.n_preemptions > before
        return [x for x in ready if x.slot >= 0] if has_preempted else ready

    def _has_room(self, request: Request) -> bool:
        """For its next token, or those that are computed with it, which its blocks do not hold."""
        table, n_tokens = request.table, request.n_computed + request.n_together
        if request.slot < 0:
            return False
        while not table.try_grow(n_tokens):
            if self._kv.holders.reclaim():
                continue
            if len(self.running) == 1 or table.gives_back(request.n_computed):
                return False
            victim = self.waiting.gives_way(self.running)
            if victim.slot in self._making.opened:
                return False
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def release(self, request: Request) -> None:
        """Forget a finished request; its blocks may be kept for a while. What a running step still
        writes to its blocks and slot is harmless: it is past what is cached, and steps run in
        order, so it is written before any new owner writes."""
        self._account.end(request)
        if request.slot < 0:
            self.waiting.remove(request)
            self._kv.forget(request)
            return
        n_kept = None
        if request.asked.hold_seconds > 0 and request.finish != "error":
            n_kept = request.settled(min(request.n_computed, len(request.tokens) - 1))
        self._stop(request, n_kept)

    def check(self) -> None:
        """Raises KvasirError unless blocks, slots and order are consistent."""
        self._kv.check(self.running)
        if any(request.table.n_tokens or request.slot >= 0 for request in self.waiting):
            raise KvasirError("a waiting request holds blocks or a slot")
        slots = sorted(self._slots + [request.slot for request in self.running])
        if slots != list(range(self._max_num_seqs)):
            raise KvasirError(
                f"slots free or running are {slots}, not each of {self._max_num_seqs}"
            )
        order = [request.seniority for request in self.running]
        if order != sorted(order):
            raise KvasirError(f"running requests are out of order of seniority: {order}")

    def _lacks_blocks(self) -> bool:
        """Whether one more could not start for that, were there one. Kept blocks do not lack."""
        n_available = self._kv.cache.n_available
        is_full = n_available <= len(self.running) and not self._kv.holders.n_kept
        return is_full or any(self._refused.values())

    def _choose(self) -> tuple[Request, Match] | None:
        passed: list[Request] = []
        for turn in self.waiting.turns(len(self.running)):
            if not self._slots:
                return None
            if not self._kv.cache.n_available and not self._kv.holders.reclaim():
                return None
            chosen = self._first_of(turn, passed)
            if chosen is not None:
                for request in passed:
                    request.turn.n_bypassed += 1
                return chosen
            if any(request.turn.n_bypassed >= self.waiting.max_bypass for request in passed):
                return None
        return None

    def _first_of(
        self, turn: Sequence[Request], passed: list[Request]
    ) -> tuple[Request, Match] | None:
        """The request of one turn that most is cached of; ``passed`` gets those that lose by it.
        Who was looked at in this plan is looked at again only when it wins."""
        best, most, found = None, -1, None
        lost: list[Request] = []
        for request in turn:
            if best is not None and not self._kv.may_match(request):
                continue
            fresh, n_tokens = None, self._looked_at.get(request, -1)
            if n_tokens < 0 or request in self._refused:
                fresh = self._startable(request, may_reclaim=best is None)
                n_tokens = -1 if fresh is None else fresh.n_tokens
                self._looked_at[request] = n_tokens
            if n_tokens > most:
                if best is not None:
                    lost.append(best)
                best, most, found = request, n_tokens, fresh
            elif self._refused.get(request):
                lost.append(request)
            is_due = request.turn.n_bypassed >= self.waiting.max_bypass
            if is_due or (best is not None and self._kv.tier is not None):
                break  # a look at what is on disk begins to read it
        if best is not None and found is None:
            found = self._startable(best, may_reclaim=True)
            if found is None:
                return self._first_of(turn, passed)
        passed.extend(lost)
        return None if best is None or found is None else (best, found)

    def _startable(self, request: Request, *, may_reclaim: bool) -> Match | None:
        """What ``request`` begins with; None when it does not fit, or waits for what another
        computes, or disk reads. Who was refused once in a plan is refused by all of it."""
        if request in self._refused or not request.n_left:
            return None
        if self._is_urgent and request.rank == LOWEST:
            return None
        if not self._making.takes(request):
            self._refused[request] = False
            return None
        # kept blocks that another match may rest on stay
        found = self._match(request, may_reclaim=may_reclaim)
        if found.on_disk is None:
            self._refused[request] = False
        elif self._waits_for_another(request, found):
            pass
        elif not found.fits:
            self._refused[request] = True
        else:
            return found
        return None

    def _waits_for_another(self, request: Request, found: Match) -> bool:
        """Whether a running request computes what it needs next, and it has not waited too long."""
        if not found.is_coming or request.turn.n_waits >= MAX_WAITS:
            return False
        request.turn.n_waits += 1
        self._refused[request] = False
        return True

    def _match(self, request: Request, *, may_reclaim: bool = True) -> Match:
        """What it would begin with, leaving blocks for those who run; kept blocks are let go until
        it fits."""
        n_spare = 0 if self._holds_all else len(self.running)
        while True:
            found = self._kv.match(request, request.n_given, self._n_held(request), n_spare)
            may_fit = not found.fits and found.on_disk is not None and may_reclaim
            if not (may_fit and self._kv.holders.reclaim()):
                return found

    def _start(self, request: Request, found: Match) -> Request:
        self._kv.start(request, found, self._n_held(request))
        self._making.opens.append(request.open(self._slots.pop()))
        request.begin(found.n_tokens)
        self.waiting.remove(request)
        insort(self.running, request, key=_SENIORITY)
        self._account.start(request)
        if found.n_loaded and found.on_disk is not None:
            self._timeline.mark(request.id, "read", found.n_loaded, since=found.on_disk.since)
        self._timeline.mark(request.id, "started", found.n_tokens)
        if not request.n_preempted:
            self._counters.tokens_waiting -= request.n_prompt
        elif found.n_loaded:
            self._timeline.mark(request.id, "swapped_in", found.n_loaded)
        return request

    def _preempt(self, victim: Request, why: str = "") -> None:
        """A running request waits again: outputs stay, KV is computed again or cached."""
        self._stop(victim)
        self._timeline.mark(victim.id, "preempted", victim.n_computed, why)
        victim.restart(self._timeline.clock())
        self.waiting.push(victim)
        self._counters.n_preemptions += 1
        self._making.has_preempted = True

    def _n_held(self, request: Request) -> int:
        """Tokens that need blocks when it starts."""
        if not self._holds_all:
            return request.n_known
        return max(request.n_known, request.n_prompt + request.max_outputs - 1)

    def _stop(self, request: Request, n_kept: int | None = None) -> None:
        del self.running[bisect_left(self.running, request.seniority, key=_SENIORITY)]
        self._account.stop(request)
        self._kv.end(request, n_kept)
        self._slots.append(request.slot)
        request.slot = -1
