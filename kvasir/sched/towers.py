"""Which pieces of towers a step runs: of one tile after the other, so many that those who wait for
the step wait for little more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.core.encoder_cache import EncoderCache
from kvasir.core.plan import TowerRun
from kvasir.core.request import LOWEST
from kvasir.core.tiles import Media
from kvasir.sched.making import Making
from kvasir.sched.order import Account
from kvasir.sched.request import Request
from kvasir.timing.cost import CostModel, chunk_load
from kvasir.timing.towers import TowerCosts

MOST_SECONDS = 0.2
"""Of the pieces of a step, whoever waits: who comes meanwhile waits for it as well."""


@dataclass(slots=True)
class _TowerJob:
    """A tile whose rows are being computed, for a request that has it."""

    request: Request
    media: Media
    flops: Sequence[float]
    """Of each piece."""
    n_done: int = 0

    @property
    def is_wanted(self) -> bool:
        return _waits_for(self.request, self.media)


class Towers:
    """Knows what rows an executor has without asking it: both do the same in the same order."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._cache = EncoderCache()
        self._job: _TowerJob | None = None
        self._forgets = False
        self._finished: list[tuple[Request, Media]] = []
        """Of tiles whose rows may be there and of which some tokens are not computed."""

    def forget(self) -> None:
        """The executor does with the next plan."""
        self._forgets = True
        self._cache.clear()
        self._job = None

    def reach(self, making: Making, request: Request, n_most: int) -> int:
        """Of the next ``n_most`` tokens of a request those that the step can compute: up to a tile
        whose rows are not there when its pieces have run that the step takes on."""
        towers, start = self._costs.towers, request.n_computed
        if towers is None or not n_most:
            return n_most
        for media in request.tiles.seen(start, start + n_most):
            if not self._finish(making, towers, request, media):
                return max(0, media.start - start)
        return n_most

    def close(self, making: Making) -> bool:
        """The plan is made; whether all rows are forgotten before it."""
        for request, row in zip(making.owners, making.rows, strict=True):
            for media in request.tiles.seen(row.start, row.end):
                self._cache.use(media.digest)
        self._cache.end_step()
        forgets, self._forgets = self._forgets, False
        return forgets

    def landed(self, making: Making, seconds: float, account: Account) -> None:
        """A plan with towers has run, and its pieces took ``seconds``."""
        if self._costs.towers is None or not making.flops:
            return
        self._costs.towers.observe(making.flops, seconds)
        for planned in making.towers:
            if planned.request.finish is None:
                account.owes(planned.request, seconds * planned.flops / making.flops)

    def _finish(self, making: Making, towers: TowerCosts, request: Request, media: Media) -> bool:
        """Whether the rows of a tile are there behind the towers of the plan."""
        while media.digest not in self._cache:
            job = self._job
            if job is not None and job.media.digest == media.digest:
                job.request, job.media = request, media
            elif job is None or not job.is_wanted:
                job = self._begin(towers, request, media)
            if job is None or not self._go_on(making, towers, job, request):
                return False
        return True

    def _begin(self, towers: TowerCosts, request: Request, media: Media) -> _TowerJob | None:
        """None while there is no room for more rows: those who wait for others would lose them."""
        held = self._finished = [x for x in self._finished if _waits_for(*x)]
        sizes = {x.digest: towers.pieces.n_bytes(x) for _, x in held}
        sizes.pop(media.digest, None)
        if sizes and sum(sizes.values()) + towers.pieces.n_bytes(media) > self._cache.limit:
            return None
        self._job = _TowerJob(request, media, towers.pieces.of_media(media))
        return self._job

    def _go_on(self, making: Making, towers: TowerCosts, job: _TowerJob, asking: Request) -> bool:
        """Plan as many pieces as there is room for; whether these are the last. The first of a plan
        has room where ``asking`` has no text before the tile."""
        n_before = max(0, job.media.start - asking.n_computed) if job.request is asking else 0
        room, end = _room(making, asking, n_before), job.n_done
        flops = seconds = 0.0
        while end < len(job.flops):
            more = towers.seconds(job.flops[end])
            is_first = not (n_before or making.towers) and end == job.n_done
            if seconds + more > room and not is_first:
                break
            seconds, flops, end = seconds + more, flops + job.flops[end], end + 1
        if end == job.n_done:
            return False
        job.n_done = end
        making.run_tower(
            job.request, TowerRun(job.request.slot, job.media.digest, end), flops, seconds
        )
        if end < len(job.flops):
            return False
        self._job = None
        self._cache.add(job.media.digest, towers.pieces.n_bytes(job.media))
        self._finished.append((job.request, job.media))
        return True


def _waits_for(request: Request, media: Media) -> bool:
    return request.slot >= 0 and request.finish is None and request.n_computed < media.end


def _room(making: Making, request: Request, n_before: int) -> float:
    """Seconds that pieces may take beside what is planned, and beside so many tokens of text."""
    room, decodes, tenant = (
        MOST_SECONDS - making.tower_seconds,
        making.decodes,
        request.standing.tenant,
    )
    is_ahead = request.rank < making.rank
    if decodes is None or (is_ahead and making.rank == LOWEST):
        return room
    load = making.load
    if n_before:
        load = load.plus(chunk_load(n_before, request.n_computed))
    if making.pace is not None and not is_ahead:
        left = making.pace.left(load, decodes, making.n_prompts[making.rank])
        room = min(room, left - making.tower_seconds)
    pace = making.tenant_pace
    if pace is not None and making.streaming - {tenant}:
        spent, contexts = making.spent.get(tenant, 0.0), making.contexts.get(tenant, 0.0)
        room = min(room, pace.share_left(decodes, spent, contexts))
    return room
