"""Weighted fair queueing over classes, and inside a class over tenants.

Each class and each tenant has a clock that advances by what its requests cost, divided by its
weight; whoever's clock is behind goes next (Demers, Keshav, Shenker: Analysis and simulation of a
fair queueing algorithm; Goyal, Vin, Cheng: Start-time fair queueing). What is cached costs nothing,
drafted tokens cost as much as others, drawn or not.

A request pays for its prompt and its first outputs when it starts and gets back what it did not
use, so that a tenant cannot take every free slot at once. While two tenants of a class wait, what
they computed, divided by their weights, differs by at most what one running set of each costs: so
a tenant's first waiting request starts after the others computed that much more.

Inside a tenant users take turns in its line, by the tokens that their requests ask for: who invents
users divides what is his.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from kvasir.config.resolved import SharingConfig
from kvasir.core.plan import Row
from kvasir.core.request import LOWEST
from kvasir.sched.clocks import Class, Clocks
from kvasir.sched.order import MAX_LOOKAHEAD, Account, Fcfs, Order, Place, Static, place
from kvasir.sched.preempt import least_senior
from kvasir.sched.request import Request
from kvasir.timing.backlog import Backlog
from kvasir.timing.cost import SCORE_SECONDS, CostModel, chunk_load

ADVANCE_OUTPUTS = 64
"""Outputs that a request pays for when it starts."""
MAX_BYPASS = 16
WINDOW = 4
"""Waiting requests of a tenant that are asked for cached prefixes."""
MAX_PASSED_STEPS = 16
"""Steps in a row that may leave out a prompt which has started."""


def make_policy(config: SharingConfig, costs: CostModel) -> tuple[Order, Account]:
    """What a configuration names."""
    if config.policy != "fair":
        return Static() if config.policy == "static" else Fcfs(), Account()
    clocks = Clocks(config.priority_weights, dict(config.tenant_weights))
    return FairOrder(clocks), FairAccount(clocks, costs)


class FairOrder(Order):
    """Whoever's clock is behind is next."""

    max_bypass = MAX_BYPASS

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks

    def __len__(self) -> int:
        return sum(len(each.waiting) for each in self._clocks.classes)

    def __iter__(self) -> Iterator[Request]:
        for each in self._clocks.classes:
            for tenant in each.tenants.values():
                yield from tenant.line

    def ahead(self, rank: int) -> Sequence[Backlog]:
        return [each.waiting for each in self._clocks.classes[: rank + 1]]

    def push(self, request: Request) -> None:
        own, tenant = self._clocks.wait(request)
        if not request.n_preempted:
            n_outputs = min(request.max_outputs, ADVANCE_OUTPUTS)
            n_tokens = request.n_prompt + n_outputs
            request.turn.tag = tenant.turn_of(request.standing.user, n_tokens)
            tenant.arrivals[request.arrival] = None
        tenant.line.push(request)
        own.waiting.add(request)
        own.wants(tenant)

    def remove(self, request: Request) -> None:
        own, tenant = self._clocks.of(request)
        tenant.line.remove(request)
        own.waiting.remove(request)
        own.rest(tenant)

    def turns(self, n_running: int) -> Iterator[Sequence[Request]]:
        n_left = MAX_LOOKAHEAD
        for each in self._waiting():
            for tenant in each.turns(n_left // WINDOW):
                window = _equals(tenant.line.first(WINDOW))
                n_left -= WINDOW
                yield window

    def urgent(self) -> Request | None:
        highest, lowest = self._clocks.classes[0], self._clocks.classes[-1]
        tenant = highest.front()
        if tenant is None or self._waiting()[0] is not highest:
            return None
        if lowest.n_running and highest.time > lowest.time:
            return None
        return tenant.line.first(1)[0]

    def placeless(self) -> Iterator[Request]:
        for each in self._waiting():
            for tenant in each.turns(MAX_LOOKAHEAD // WINDOW):
                if not tenant.n_running:
                    yield tenant.line.first(1)[0]

    def takes_slot(self, waiting: Request, running: Request) -> bool:
        if running.rank >= waiting.rank or waiting.rank == LOWEST:
            return running.rank >= waiting.rank
        mine, own = self._clocks.classes[waiting.rank], self._clocks.classes[running.rank]
        return mine.claim < own.claim

    def gives_way(self, running: Sequence[Request]) -> Request:
        rank = running[-1].rank
        first = bisect_left(running, rank, key=attrgetter("rank"))
        return least_senior(running[first:], self._clocks.classes[rank].tenants)

    def goes_first(self, running: Request) -> bool:
        if running.turn.n_left_out >= MAX_PASSED_STEPS:
            return False
        mine, own = self._clocks.of(running)
        for each in self._waiting():
            if each is not mine:
                return each.time <= mine.time
            first = each.front()
            return first is not None and first is not own and first.time <= own.time
        return False

    def ranked(self, prompts: list[Request]) -> list[Request]:
        """One that was left out for too long goes first, then whoever's clock is behind."""
        return prompts if len(prompts) < 2 else sorted(prompts, key=self._claim)

    def claims(self, prompts: Iterable[Request]) -> int:
        """Of the highest class, while it has had less than its share."""
        classes = self._clocks.classes
        if classes[0].time > classes[-1].time:
            return 0
        return sum(request.n_left for request in prompts if not request.rank)

    def _waiting(self) -> list[Class]:
        found = [each for each in self._clocks.classes if each.waiting]
        return found if len(found) < 2 else sorted(found, key=lambda each: each.claim)

    def _claim(self, request: Request) -> tuple[bool, float, float, str, Place]:
        own, tenant = self._clocks.of(request)
        is_due = request.turn.n_left_out >= MAX_PASSED_STEPS
        return not is_due, own.time, tenant.time, tenant.name, place(request)


class FairAccount(Account):
    """Advances the clocks by seconds. ``costs`` says what tokens cost."""

    def __init__(self, clocks: Clocks, costs: CostModel) -> None:
        self._clocks = clocks
        self._costs = costs

    @property
    def is_shared(self) -> bool:
        return self._clocks.n_tenants > 1

    def start(self, request: Request) -> None:
        clocks = self._clocks.serve(request)
        turn = request.turn
        turn.n_charged = request.n_computed
        n_outputs = min(request.max_outputs - request.n_drawn, ADVANCE_OUTPUTS)
        turn.advance = self._spend(request, request.n_known + n_outputs)
        for clock in clocks:
            clock.pay(turn.advance)

    def charge(self, requests: Iterable[Request]) -> None:
        for request in requests:
            n_computed, turn = request.n_computed, request.turn
            if n_computed <= turn.n_charged:
                continue
            cost, advance = self._spend(request, n_computed), turn.advance
            if request.drafting.owed:
                cost = max(0.0, cost + request.drafting.owed)
                request.drafting.owed = 0.0
            turn.n_charged = n_computed
            paid = cost if cost < advance else advance
            turn.advance = advance - paid
            for clock in self._clocks.of(request):
                clock.time += cost / clock.weight
                if paid:
                    clock.pay(-paid)

    def verified(self, request: Request, row: Row, n_kept: int) -> None:
        """Tokens that were not drawn are charged as the others; entries are read once for all of a
        row, where outputs that stay are charged as a row each."""
        n, start = len(row.tokens), row.start
        whole, kept = chunk_load(n, start), chunk_load(n_kept, start)
        own = self._costs.seconds(n_kept, n_kept, kept.pairs, kept.pairs)
        request.drafting.owed += self._costs.seconds(n, n, whole.pairs, whole.entries) - own

    def owes(self, request: Request, seconds: float) -> None:
        request.drafting.owed += seconds

    def stop(self, request: Request) -> None:
        self.charge((request,))
        for clock in self._clocks.of(request):
            clock.pay(-request.turn.advance)
        request.turn.advance = 0.0
        self._clocks.stop(request)

    def end(self, request: Request) -> None:
        _, tenant = self._clocks.of(request)
        del tenant.arrivals[request.arrival]

    def _spend(self, request: Request, end: int) -> float:
        """Seconds for the tokens from the last one charged to ``end``: a prompt in one row, outputs
        in a row each, and for their logprobs."""
        start, n_prompt, params = request.turn.n_charged, request.n_prompt, request.params
        rows = n_tokens = end - start
        pairs = entries = n_tokens * (start + end + 1) // 2
        n_scored = 0
        if start < n_prompt:
            read = end if end < n_prompt else n_prompt
            rows = n_drawn = end - read
            entries = read + n_drawn * (read + end + 1) // 2
            # where its tokens are scored, each has a row of logits
            n_scored = read - start if params.n_prompt_logprobs >= 0 else 0
            rows += 1 + n_scored
            start = read
        seconds = self._costs.seconds(rows, n_tokens, pairs, entries)
        scores = n_scored * (1 + params.n_prompt_logprobs) if n_scored else 0
        if params.n_logprobs >= 0:
            scores += (end - start) * (1 + params.n_logprobs)
        return seconds + SCORE_SECONDS * scores if scores else seconds


def _equals(window: list[Request]) -> list[Request]:
    """The leading requests of one priority, in whose order they are: a cached prefix does not outdo
    a priority."""
    first = window[0].standing.priority
    if window[-1].standing.priority == first:
        return window
    return [request for request in window if request.standing.priority == first]
