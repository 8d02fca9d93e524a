"""Which prompts a step goes on with, and which requests it starts."""

from __future__ import annotations

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.request import LOWEST
from kvasir.sched.making import Making
from kvasir.sched.order import Account
from kvasir.sched.queues import Queues
from kvasir.sched.request import Request
from kvasir.sched.rows import first_draw
from kvasir.sched.towers import Towers


class Prompts:
    """Fills what the decodes leave of a plan, in the order of the policy."""

    def __init__(
        self,
        queues: Queues,
        account: Account,
        config: SchedulerConfig,
        towers: Towers,
    ) -> None:
        self._queues = queues
        self._towers = towers
        self._order = queues.waiting
        self._account = account
        self._has_windows = bool(config.sizes.windows)
        """Some layers hold the blocks of a window only."""

    def plan(self, making: Making, prompts: list[Request]) -> None:
        """Prompts, and what is recomputed; all their blocks but those of windowed groups were taken
        on admission. Nobody starts in a plan for which another was preempted."""
        may_start = not making.has_preempted
        is_shared = self._account.is_shared and (prompts or len(self._order))
        if making.decodes is not None and is_shared:
            making.streaming = frozenset([x.standing.tenant for x in making.streams])
        if making.pace is not None:
            making.n_prompts = [
                sum(request.rank <= rank for request in prompts)
                + sum(map(len, self._order.ahead(rank)))
                for rank in range(LOWEST + 1)
            ]
        self._account.charge(prompts)
        for request in self._order.ranked(prompts):
            if request.slot < 0 or not request.n_left:
                continue
            while may_start and self._order.goes_first(request) and self._start(making):
                pass
            if making.room(request) and making.scorable(request):
                self._chunk(making, request)
            else:
                request.turn.n_left_out += 1
        while may_start and self._start(making):
            pass

    def begin(self, making: Making) -> None:
        """What comes before any row, because it may preempt: urgent requests start, and blocks are
        taken of windowed groups, which are taken as prompts are computed, too; oldest first."""
        self._queues.begin(making)
        room = making.budget  # urgent requests start as long as one has room for a token
        while room > 0 and (started := self._queues.start_urgent()) is not None:
            room -= started.n_left
        if room > 0 and self._account.is_shared:
            self._queues.start_placeless()
        if self._has_windows:
            self._queues.reserve([x for x in self._queues.running if x.n_left])

    def _start(self, making: Making) -> bool:
        """The next waiting request, if one can start."""
        started = self._queues.start_next() if making.has_room() else None
        if started is not None:
            self._chunk(making, started)
        return started is not None

    def _chunk(self, making: Making, request: Request) -> None:
        """A chunk for which windowed groups have blocks: a running step may have to give some back
        before there is one."""
        n_most = min(request.n_left, making.scorable(request))
        if self._has_windows:
            n_most = min(n_most, request.table.room() - request.n_computed)
        n_towers = len(making.towers)
        n_most = self._towers.reach(making, request, max(0, n_most))
        n_tokens = making.fitting(request, n_most) if n_most else 0
        if len(making.towers) > n_towers:
            request.turn.n_left_out = 0
        if n_tokens:
            making.chunk(request, n_tokens)
            if first_draw(making.rows[-1]) == 0:
                self._wait_for(making, request)
            request.turn.n_left_out = 0
            self._account.charge((request,))

    def _wait_for(self, making: Making, request: Request) -> None:
        """The first token of ``request`` comes with this plan: it waits for prompts of other
        classes, or of other tenants, no longer than a stream does."""
        is_first = not request.rank and bool(making.rank)
        if is_first:
            making.keep_pace(1)
        elif making.decodes is None and making.pace is None and self._account.is_shared:
            making.keep_pace(request.rank)
        if is_first or self._account.is_shared:
            making.streaming |= {request.standing.tenant}
