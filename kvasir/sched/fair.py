"""Weighted fair queueing over classes, and inside a class over tenants.

Each class and each tenant has a clock that advances by what its requests cost, divided by its
weight; whoever's clock is behind goes next (Demers, Keshav, Shenker: Analysis and simulation of a
fair queueing algorithm; Goyal, Vin, Cheng: Start-time fair queueing). What is cached costs nothing.

A request pays for its prompt and its first outputs when it starts and gets back what it did not
use, so that a tenant cannot take every free slot at once. While two tenants of a class wait, what
they computed, divided by their weights, differs by at most what one running set of each costs: so
a tenant's first waiting request starts after the others computed that much more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, heapreplace

from kvasir.sched.policy import MAX_LOOKAHEAD, Line
from kvasir.sched.request import Request
from kvasir.timing.backlog import Backlog
from kvasir.timing.cost import CostModel

DEFAULT_WEIGHTS = (10.0, 5.0, 1.0)
"""Of the classes, in their order."""
ADVANCE_OUTPUTS = 64
"""Outputs that a request pays for when it starts."""
MAX_BYPASS = 16
WINDOW = 4
"""Waiting requests of a tenant that are asked for cached prefixes."""
MAX_IDLE = 1024
"""Tenants without requests whose clocks are remembered."""
MAX_PASSED_STEPS = 16
"""Steps in a row that may leave out a prompt which has started."""


class _Clock:
    """``time`` counts what was computed, ``advance`` what runs and is paid for beyond."""

    __slots__ = ("advance", "time", "weight")

    def __init__(self, weight: float, time: float) -> None:
        self.weight = weight
        self.time = time
        self.advance = 0.0

    @property
    def claim(self) -> float:
        return self.time + self.advance

    def pay(self, ahead: float) -> None:
        """In advance, or less than nothing of it: back, or for what was computed meanwhile."""
        advance = self.advance + ahead / self.weight
        self.advance = advance if advance > 0.0 else 0.0


class _Tenant(_Clock):
    __slots__ = ("line", "n_running", "name", "queued")

    def __init__(self, name: str, weight: float, time: float) -> None:
        super().__init__(weight, time)
        self.name = name
        self.line = Line()
        self.n_running = 0
        self.queued: float | None = None
        """Claim of its entry in the heap that counts."""


class _Class(_Clock):
    """Tenants that wait are found through a heap, in which each has one entry that counts."""

    def __init__(self, weight: float, tenant_weights: Mapping[str, float]) -> None:
        super().__init__(weight, 0.0)
        self.waiting = Backlog()
        self.n_running = 0
        self._weights = tenant_weights
        self._floor = 0.0
        self._tenants: dict[str, _Tenant] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._heap: list[tuple[float, str]] = []

    def tenant(self, name: str) -> _Tenant:
        """A new one, or one that was idle, starts at the clock of those that are served."""
        found = self._tenants.get(name)
        if found is None:
            found = _Tenant(name, self._weights.get(name, 1.0), self._floor)
            self._tenants[name] = found
        if not found.line and not found.n_running:
            found.time = max(found.time, self._floor)
        self._idle.pop(name, None)
        return found

    def known(self, name: str) -> _Tenant:
        return self._tenants[name]

    def lines(self) -> Iterator[_Tenant]:
        return iter(self._tenants.values())

    def wants(self, tenant: _Tenant) -> None:
        """Its claim is new or became smaller; one that grew is noticed when its entry comes up."""
        if tenant.line and (tenant.queued is None or tenant.claim < tenant.queued):
            tenant.queued = tenant.claim
            heappush(self._heap, (tenant.claim, tenant.name))

    def front(self) -> _Tenant | None:
        """The tenant of the smallest claim among those with waiting requests."""
        heap = self._heap
        while heap:
            claim, name = heap[0]
            tenant = self._tenants.get(name)
            if tenant is None or tenant.queued != claim:
                heappop(heap)
            elif not tenant.line:
                tenant.queued = None
                heappop(heap)
            elif claim < tenant.claim:
                tenant.queued = tenant.claim
                heapreplace(heap, (tenant.claim, name))
            else:
                return tenant
        return None

    def first(self, n: int) -> list[_Tenant]:
        """The tenants of at most ``n`` smallest claims among those with waiting requests."""
        found: list[_Tenant] = []
        while len(found) < n and (tenant := self.front()) is not None:
            tenant.queued = None
            heappop(self._heap)
            found.append(tenant)
        for tenant in found:
            self.wants(tenant)
        return found

    def turns(self, n: int) -> Iterator[_Tenant]:
        """``first``, of which mostly one is looked at."""
        front = self.front()
        if front is not None:
            yield front
            yield from self.first(n)[1:]

    def serve(self, tenant: _Tenant) -> None:
        """One of its requests starts."""
        self._floor = max(self._floor, tenant.time)
        self._idle.pop(tenant.name, None)
        tenant.n_running += 1
        self.n_running += 1

    def rest(self, tenant: _Tenant) -> None:
        """One of its requests left; without any, it is remembered for a while."""
        if tenant.line or tenant.n_running:
            return
        self._idle[tenant.name] = None
        while len(self._idle) > MAX_IDLE:
            del self._tenants[self._idle.popitem(last=False)[0]]


class Fair:
    """``costs`` says what tokens cost. ``weights``: of the classes; ``tenants``: of tenants whose
    weight is not 1."""

    knows_classes = True
    max_bypass = MAX_BYPASS

    def __init__(
        self,
        costs: CostModel,
        weights: Sequence[float] = DEFAULT_WEIGHTS,
        tenants: Mapping[str, float] | None = None,
    ) -> None:
        self._costs = costs
        self._classes = [_Class(weight, tenants or {}) for weight in weights]
        self._floor = 0.0

    def __len__(self) -> int:
        return sum(len(group.waiting) for group in self._classes)

    def __iter__(self) -> Iterator[Request]:
        for group in self._classes:
            for tenant in group.lines():
                yield from tenant.line

    def n_waiting(self, rank: int) -> int:
        return sum(map(len, self.ahead(rank)))

    def ahead(self, rank: int) -> Sequence[Backlog]:
        return [group.waiting for group in self._classes[: rank + 1]]

    def claims(self, prompts: Iterable[Request]) -> int:
        """Of the highest class, while it has had less than its share."""
        if self._classes[0].time > self._classes[-1].time:
            return 0
        return sum(request.n_left for request in prompts if not request.rank)

    def push(self, request: Request) -> None:
        group = self._classes[request.rank]
        if not group.waiting and not group.n_running:
            group.time = max(group.time, self._floor)
        tenant = group.tenant(request.standing.tenant)
        tenant.line.push(request)
        group.waiting.add(request)
        group.wants(tenant)

    def remove(self, request: Request) -> None:
        group = self._classes[request.rank]
        tenant = group.known(request.standing.tenant)
        tenant.line.remove(request)
        group.waiting.remove(request)
        group.rest(tenant)

    def is_open(self, n_running: int) -> bool:
        return True

    def urgent(self) -> Request | None:
        tenant = self._classes[0].front()
        return None if tenant is None else tenant.line.first(1)[0]

    def turns(self) -> Iterator[Sequence[Request]]:
        n_left = MAX_LOOKAHEAD
        for group in self._waiting():
            for tenant in group.turns(n_left // WINDOW):
                window = _equals(tenant.line.first(WINDOW))
                n_left -= WINDOW
                yield window

    def full(self) -> None:
        """Nothing is remembered of it."""

    def started(self, request: Request) -> None:
        group, tenant = self._places(request)
        self._floor = max(self._floor, group.time)
        group.serve(tenant)
        turn = request.turn
        turn.n_charged = request.n_computed
        n_outputs = min(request.max_outputs - request.n_drawn, ADVANCE_OUTPUTS)
        turn.advance = self._spend(request, request.n_known + n_outputs)
        group.pay(turn.advance)
        tenant.pay(turn.advance)

    def stopped(self, request: Request) -> None:
        self.computed((request,))
        group, tenant = self._places(request)
        tenant.n_running -= 1
        group.n_running -= 1
        group.pay(-request.turn.advance)
        tenant.pay(-request.turn.advance)
        request.turn.advance = 0.0
        group.wants(tenant)
        group.rest(tenant)

    def computed(self, requests: Iterable[Request]) -> None:
        for request in requests:
            n_computed, turn = request.n_computed, request.turn
            if n_computed <= turn.n_charged:
                continue
            cost, advance = self._spend(request, n_computed), turn.advance
            turn.n_charged = n_computed
            paid = cost if cost < advance else advance
            turn.advance = advance - paid
            for clock in self._places(request):
                clock.time += cost / clock.weight
                if paid:
                    clock.pay(-paid)

    def order(self, prompts: list[Request]) -> list[Request]:
        """One that was left out for too long goes first, then whoever's clock is behind."""
        return prompts if len(prompts) < 2 else sorted(prompts, key=self._claim)

    def goes_first(self, running: Request) -> bool:
        if running.turn.n_left_out >= MAX_PASSED_STEPS:
            return False
        mine, own = self._places(running)
        for group in self._waiting():
            if group is not mine:
                return group.time < mine.time
            first = group.front()
            return first is not None and first is not own and first.time < own.time
        return False

    def _waiting(self) -> list[_Class]:
        found = [group for group in self._classes if group.waiting]
        return found if len(found) < 2 else sorted(found, key=lambda group: group.claim)

    def _claim(self, request: Request) -> tuple[bool, float, float, tuple[int, int, int]]:
        group, tenant = self._places(request)
        is_due = request.turn.n_left_out >= MAX_PASSED_STEPS
        return not is_due, group.time, tenant.time, request.seniority

    def _places(self, request: Request) -> tuple[_Class, _Tenant]:
        group = self._classes[request.rank]
        return group, group.known(request.standing.tenant)

    def _spend(self, request: Request, end: int) -> float:
        """Seconds for the tokens from the last one charged to ``end``: a prompt in one row, outputs
        in a row each."""
        start, rows, pairs, entries = request.turn.n_charged, 0, 0, 0
        n_tokens = end - start
        if start < request.n_prompt:
            rows, entries = 1, min(end, request.n_prompt)
            pairs = _pairs(start, entries)
            start = entries
        read = _pairs(start, end)
        return self._costs.seconds(rows + end - start, n_tokens, pairs + read, entries + read)


def _pairs(start: int, end: int) -> int:
    """Of the tokens [start, end) with those up to themselves."""
    return (end - start) * (start + end + 1) // 2


def _equals(window: list[Request]) -> list[Request]:
    """The leading requests of one priority: a cached prefix does not outdo a priority."""
    return [
        request for request in window if request.standing.priority == window[0].standing.priority
    ]
