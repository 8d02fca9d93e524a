"""Classes and tenants with their clocks, and the lines in which their requests wait."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush, heapreplace

from kvasir.sched.order import Line
from kvasir.sched.request import Request
from kvasir.timing.backlog import Backlog

MAX_IDLE = 1024
"""Tenants without requests whose clocks are remembered, and users of a tenant."""


class Clock:
    """``time`` counts what was computed, ``advance`` what runs and is paid for beyond."""

    __slots__ = ("advance", "n_running", "time", "weight")

    def __init__(self, weight: float, time: float) -> None:
        self.weight = weight
        self.time = time
        self.advance = 0.0
        self.n_running = 0

    @property
    def claim(self) -> float:
        return self.time + self.advance

    def pay(self, ahead: float) -> None:
        """In advance, or less than nothing of it: back, or for what was computed meanwhile."""
        advance = self.advance + ahead / self.weight
        self.advance = advance if advance > 0.0 else 0.0


class ServedClocks:
    """Those clocks of which something runs."""

    def __init__(self) -> None:
        self._running: dict[int, Clock] = {}
        self._floor = 0.0

    @property
    def time(self) -> float:
        """Where whoever was idle begins, so that it has saved nothing up: the virtual time of
        start-time fair queueing (Goyal, Vin, Cheng 1996), which goes on with what runs, and stays
        where the last one stopped."""
        if self._running:
            self._floor = max(self._floor, min([clock.time for clock in self._running.values()]))
        return self._floor

    def begin(self, clock: Clock) -> None:
        """One more of its requests runs."""
        self._floor = max(self._floor, clock.time)
        self._running[id(clock)] = clock
        clock.n_running += 1

    def stop(self, clock: Clock) -> None:
        clock.n_running -= 1
        if not clock.n_running:
            del self._running[id(clock)]
            if not self._running:
                self._floor = max(self._floor, clock.time)


class Tenant(Clock):
    __slots__ = ("_users", "arrivals", "line", "name", "queued", "tag")

    def __init__(self, name: str, weight: float, time: float) -> None:
        super().__init__(weight, time)
        self.name = name
        self.line = Line()
        self.queued: float | None = None
        """Claim of its entry in the heap that counts."""
        self.tag = 0.0
        """Of the request that started last."""
        self.arrivals: OrderedDict[int, None] = OrderedDict()
        """Of its requests that have not ended, the oldest first."""
        self._users: OrderedDict[str, float] = OrderedDict()

    @property
    def oldest(self) -> int:
        """Arrival of its oldest request that has not ended."""
        return next(iter(self.arrivals))

    def turn_of(self, user: str, n_tokens: int) -> float:
        """The tag of a request of ``user`` for so many tokens: users take turns by what they ask
        for, and who was idle has saved nothing up (start-time fair queueing)."""
        tag = max(self.tag, self._users.pop(user, 0.0))
        self._users[user] = tag + n_tokens
        if len(self._users) > MAX_IDLE:
            self._users.popitem(last=False)
        return tag


class Class(Clock):
    """Tenants that wait are found through a heap, in which each has one entry that counts."""

    def __init__(self, weight: float, tenant_weights: Mapping[str, float]) -> None:
        super().__init__(weight, 0.0)
        self.waiting = Backlog()
        self._weights = tenant_weights
        self._served = ServedClocks()
        self.tenants: dict[str, Tenant] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._heap: list[tuple[float, str]] = []

    def tenant(self, name: str) -> Tenant:
        """A new one, or one that was idle, starts at the clock of those that are served."""
        found = self.tenants.get(name)
        if found is None:
            found = Tenant(name, self._weights.get(name, 1.0), 0.0)
            self.tenants[name] = found
        if not (found.n_running or found.line):
            found.time = max(found.time, self._served.time)
        self._idle.pop(name, None)
        return found

    def wants(self, tenant: Tenant) -> None:
        """Its claim is new or became smaller; one that grew is noticed when its entry comes up."""
        claim, queued = tenant.time + tenant.advance, tenant.queued
        if (queued is None or claim < queued) and tenant.line:
            tenant.queued = claim
            heappush(self._heap, (claim, tenant.name))

    def front(self) -> Tenant | None:
        """The tenant of the smallest claim among those with waiting requests."""
        heap = self._heap
        while heap:
            claim, name = heap[0]
            tenant = self.tenants.get(name)
            if tenant is None or tenant.queued != claim:
                heappop(heap)
            elif not tenant.line:
                tenant.queued = None
                heappop(heap)
            elif claim < (now := tenant.time + tenant.advance):
                tenant.queued = now
                heapreplace(heap, (now, name))
            else:
                return tenant
        return None

    def first(self, n: int) -> list[Tenant]:
        """The tenants of at most ``n`` smallest claims among those with waiting requests."""
        found: list[Tenant] = []
        while len(found) < n and (tenant := self.front()) is not None:
            tenant.queued = None
            heappop(self._heap)
            found.append(tenant)
        for tenant in found:
            self.wants(tenant)
        return found

    def turns(self, n: int) -> Iterator[Tenant]:
        """``first``, of which mostly one is looked at."""
        front = self.front()
        if front is not None:
            yield front
            yield from self.first(n)[1:]

    def serve(self, tenant: Tenant) -> None:
        """One of its requests starts."""
        self._served.begin(tenant)
        self._idle.pop(tenant.name, None)

    def stop(self, tenant: Tenant) -> None:
        """One of its running requests stops."""
        self._served.stop(tenant)
        self.wants(tenant)
        self.rest(tenant)

    def rest(self, tenant: Tenant) -> None:
        """One of its requests left; without any, it is remembered for a while."""
        if tenant.n_running or tenant.line:
            return
        self._idle[tenant.name] = None
        while len(self._idle) > MAX_IDLE:
            del self.tenants[self._idle.popitem(last=False)[0]]


class Clocks:
    """Of all classes, the highest first."""

    def __init__(self, weights: Sequence[float], tenants: Mapping[str, float]) -> None:
        """``weights``: of the classes; ``tenants``: of tenants whose weight is not 1."""
        self.classes = [Class(weight, tenants) for weight in weights]
        self._served = ServedClocks()

    def wait(self, request: Request) -> tuple[Class, Tenant]:
        """Of a request that begins to wait. Whoever was idle starts at the clock of those that are
        served."""
        own = self.classes[request.rank]
        if not (own.n_running or own.waiting):
            own.time = max(own.time, self._served.time)
        return own, own.tenant(request.standing.tenant)

    def of(self, request: Request) -> tuple[Class, Tenant]:
        own = self.classes[request.rank]
        return own, own.tenants[request.standing.tenant]

    @property
    def n_tenants(self) -> int:
        """That are known, in each class by itself."""
        return sum([len(each.tenants) for each in self.classes])

    def serve(self, request: Request) -> tuple[Class, Tenant]:
        """It starts."""
        own, tenant = self.of(request)
        self._served.begin(own)
        tenant.tag = max(tenant.tag, request.turn.tag)
        own.serve(tenant)
        return own, tenant

    def stop(self, request: Request) -> None:
        """It stops, for a while or for ever."""
        own, tenant = self.of(request)
        self._served.stop(own)
        own.stop(tenant)
