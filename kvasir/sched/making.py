"""A plan in the making: rows, whose they are, and what is left of the budget."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvasir.core.params import MAX_LOGPROBS
from kvasir.core.plan import Row, SlotOpen, TableChange, TowerRun, reference
from kvasir.core.request import LOWEST, PRIORITY_CLASSES
from kvasir.kv.holders import Holder
from kvasir.sched.request import Request
from kvasir.sched.rows import chunk_row
from kvasir.timing.cost import CostModel, Load, chunk_load
from kvasir.timing.pace import Pace

MAX_SCORES = 4096
"""Logprobs of prompts in a step, alternatives included: to gather and tell them takes 15 ms."""


class PlannedTower(NamedTuple):
    request: Request
    start: int
    """Its tokens that were computed before."""
    run: TowerRun
    flops: float


@dataclass(slots=True)
class Making:
    budget: int
    """Tokens."""
    whole_prompts: bool = False
    """Of a prompt all tokens, or none."""
    pace: Pace | None = None
    tenant_pace: Pace | None = None
    """Of all prompts of one tenant."""
    decodes: Load | None = None
    """The part that streams wait for, when there is one."""
    streams: Sequence[Request] = ()
    """That wait for the plan: those with a row, or, where none has one, those whose newest token
    is being drawn, and whose next rows come behind the plan."""
    streaming: frozenset[str] = frozenset()
    """Tenants whose streams these are, where tenants are known."""
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds that chunks of each tenant take."""
    contexts: dict[str, float] = field(default_factory=dict)
    """Seconds of its room that contexts of each tenant's streams have used."""
    rank: int = LOWEST
    """Of the highest class among these streams: prompts of a higher one do not keep their pace,
    but that of other tenants unless these are of the lowest class."""
    n_prompts: Sequence[int] = (1,) * len(PRIORITY_CLASSES)
    """To be computed for requests of each class or a higher one, those that wait included."""
    rows: list[Row] = field(default_factory=list)
    owners: list[Request] = field(default_factory=list)
    """Whose row it is."""
    preemptions: list[int] = field(default_factory=list)
    """How often its owner was when the row was planned."""
    opens: list[SlotOpen] = field(default_factory=list)
    has_preempted: bool = False
    """Somebody, for others."""
    tables: list[TableChange] = field(default_factory=list)
    n_scores: int = 0
    """Logprobs of prompts, alternatives included."""
    n_decodes: int = 0
    """The first rows, when they are of one token and one draw each."""
    forced: dict[int, int] = field(default_factory=dict)
    """By their indices the rows of forced tokens, and how many tokens these have."""
    n_drafted: int = 0
    """Tokens that may turn out to be others."""
    n_kept: int = 0
    """Tokens that drafts leave, for what prompts have that sees each other."""
    towers: list[PlannedTower] = field(default_factory=list)
    tower_seconds: float = 0.0
    """Seconds that these are expected to take."""
    n_logits: int = 0
    load: Load = field(default_factory=Load)

    @property
    def opened(self) -> frozenset[int]:
        """Slots of those who start, whose blocks the plan names."""
        return frozenset([opening.slot for opening in self.opens])

    @property
    def flops(self) -> float:
        """Operations of all towers."""
        return sum(planned.flops for planned in self.towers)

    @property
    def tower_owners(self) -> list[tuple[int, int]]:
        """(request, tokens computed before) of those who have towers."""
        found: dict[int, int] = {}
        for planned in self.towers:
            found.setdefault(planned.request.id, planned.start)
        return list(found.items())

    def told(self, costs: CostModel) -> tuple[list[Request], float, float, float]:
        """For whom it computes, the seconds that it is expected to take, those without its drafts,
        and those that towers may take beside on a slow machine."""
        seconds, least = costs.step_seconds(self.load), costs.step_seconds(self.undrafted)
        if costs.towers is None or not self.towers:
            return self.owners, seconds, least, 0.0
        owners = list(dict.fromkeys([*self.owners, *(x.request for x in self.towers)]))
        most = costs.towers.most_seconds(self.flops)
        return owners, seconds + self.tower_seconds, least + self.tower_seconds, most

    @property
    def n_forced(self) -> int:
        """Tokens that have no step of their own."""
        return sum(self.forced.values()) - len(self.forced)

    @property
    def undrafted(self) -> Load:
        """The load without drafts: a drafted token takes something between nothing and what one of
        a prompt takes."""
        return self.load._replace(tokens=self.load.tokens - self.n_drafted)

    def decode(self, requests: Sequence[Request]) -> None:
        """The newest token of requests that lack only that one, in rows like ``chunk_row``'s,
        sooner: nearly all rows are these."""
        n, n_entries = len(requests), 0
        draw, append, preemptions = self.n_logits, self.rows.append, self.preemptions
        for request in requests:
            start, tokens, n_drawn = request.n_computed, request.tokens, request.n_drawn
            token = tokens[start] if start < len(tokens) else -1 - request.draw
            request.n_computed = end = start + 1
            if request.table.news:
                self._tell(request)
            append(Row(request.slot, start, (token,), 1, n_drawn))
            request.draw = draw
            request.n_drawn = n_drawn + 1
            preemptions.append(request.n_preempted)
            draw += 1
            n_entries += end
        if self.n_decodes == len(self.owners):
            self.n_decodes += n
        self.owners.extend(requests)
        self.n_logits += n
        self.budget -= n
        self.load = self.load.plus(Load(n, n, n_entries, n_entries))

    def others(self) -> tuple[list[Row], list[Request], list[int]]:
        """The rows after the first ``n_decodes``, whose they are, and ``preemptions``."""
        n = self.n_decodes
        return self.rows[n:], self.owners[n:], self.preemptions[n:]

    def room(self, request: Request, n_most: int = 1) -> int:
        """Tokens of ``request``, at most ``n_most``, that the step takes on; of tokens that see
        each other all or none, where it takes on any, whatever the pace."""
        if self.whole_prompts:
            return request.n_left if request.n_left <= self.budget else 0
        if request.n_together > 1:
            return request.n_together if self._takes_span(request.n_together) else 0
        n_most = min(n_most, self.budget)
        if self.decodes is None:
            return n_most
        tenant, start = request.standing.tenant, request.n_computed
        is_ahead = request.rank < self.rank
        if is_ahead and self.rank == LOWEST:
            return n_most
        if self.pace is not None and not is_ahead:
            n_prompts, towers = self.n_prompts[self.rank], self.tower_seconds
            n_most = self.pace.room(self.load, self.decodes, start, n_most, n_prompts, towers)
        pace = self.tenant_pace
        if pace is not None and self.streaming - {tenant}:
            spent, contexts = self.spent.get(tenant, 0.0), self.contexts.get(tenant, 0.0)
            n_most = pace.share_room(self.decodes, spent, start, n_most, contexts)
            if request.is_scoring and n_most > 1:
                seconds = pace.costs.chunk_seconds(n_most, start)
                whole = seconds + n_most * pace.costs.score_seconds(
                    request.params.n_prompt_logprobs
                )
                n_most = max(1, int(n_most * seconds / whole))
        return n_most

    def _takes_span(self, n_tokens: int) -> bool:
        return n_tokens <= self.budget and self.has_room()

    def has_room(self) -> bool:
        """Whether the step takes on a token more of anybody's prompt."""
        if self.pace is None or self.decodes is None:
            return self.budget > 0
        n_prompts, n_most = self.n_prompts[self.rank], min(1, self.budget)
        return self.pace.room(self.load, self.decodes, 0, n_most, n_prompts, self.tower_seconds) > 0

    def takes(self, request: Request) -> bool:
        """Whether it takes on a token of a request that would start, and may score it."""
        may_score = self.n_scores + 1 + MAX_LOGPROBS <= MAX_SCORES
        return self.room(request) > 0 and (may_score or not request.is_scoring)

    def scorable(self, request: Request) -> int:
        """Tokens of ``request`` whose scores the step takes on, where it wants any."""
        if not request.is_scoring:
            return request.n_left
        n_most = (MAX_SCORES - self.n_scores) // (1 + request.params.n_prompt_logprobs)
        return n_most if self.n_scores else max(n_most, request.n_together)

    def fitting(self, request: Request, n_most: int) -> int:
        """Of the next ``n_most`` tokens of a request as many as there is room for, one at least, or
        none where that one is of several that see each other."""
        n_most = min(n_most, max(1, self.room(request, n_most)))
        return request.tiles.whole(request.n_computed, n_most)

    def run_tower(self, request: Request, run: TowerRun, flops: float, seconds: float) -> None:
        """Pieces of a tower for ``request``, and what they take."""
        self.towers.append(PlannedTower(request, request.n_computed, run, flops))
        self.tower_seconds += seconds
        if self.streaming and self.tenant_pace is not None:
            self.spent[request.standing.tenant] += seconds

    def chunk(self, request: Request, n_tokens: int) -> None:
        """The next ``n_tokens`` of a request."""
        if self.streaming and self.tenant_pace is not None:
            tenant, costs = request.standing.tenant, self.tenant_pace.costs
            seconds = costs.chunk_seconds(n_tokens, request.n_computed)
            if request.is_scoring:
                seconds += n_tokens * costs.score_seconds(request.params.n_prompt_logprobs)
            self.spent[tenant] += seconds
        request.table.grow(request.n_computed + n_tokens)
        row = chunk_row(request, n_tokens)
        n_draws = row.n_logits
        if row.targets:
            n_draws = row.targets.count(-1)
            request.prefill.n_scored += row.n_logits - n_draws
            self.n_scores += (row.n_logits - n_draws) * (1 + request.params.n_prompt_logprobs)
        self._advance(request, row, n_draws)

    def keep_pace(self, rank: int) -> None:
        """Streams of class ``rank`` and the higher ones wait for what is planned so far."""
        self.decodes, self.rank = self.load, rank

    def wait_for(self, streams: Sequence[Request]) -> None:
        """``streams``: by seniority."""
        if streams:
            self.streams = streams
            self.keep_pace(streams[0].rank)

    def start_of(self, request: Holder) -> int:
        """Tokens of a running request that are computed before this plan runs."""
        rows = zip(self.owners, self.rows, strict=True)
        return next((row.start for owner, row in rows if owner is request), request.n_computed)

    def commits(self, emitted: Sequence[tuple[Request, int]]) -> tuple[tuple[int, int], ...]:
        """(slot, token) of what the samplers' states were not told; a slot is opened with all of
        its own."""
        commits = [(request.slot, token) for request, token in emitted if request.slot >= 0]
        if opened := self.opened:
            commits = [commit for commit in commits if commit[0] not in opened]
        return tuple(commits)

    def draft(self, request: Request, row: Row, *, is_forced: bool = False) -> None:
        """A row that speculates: how far ``request`` gets is not known before it is committed. One
        that only asks for drafts, or computes forced tokens, gets as far as it is long."""
        if is_forced:
            self.forced[len(self.rows)] = len(row.tokens)
        if row.n_logits > 1:
            self._add(request, row)
            self.n_drafted += 0 if is_forced else len(row.tokens) - 1
            request.drafting.is_open = True
            return
        self._advance(request, row, row.n_logits)
        drafts = tuple(reference(request.draw, j + 1) for j in range(row.n_drafts))
        request.drafting.following = request.n_known, drafts, ()

    def _advance(self, request: Request, row: Row, n_draws: int) -> None:
        """A row after which it is known how far ``request`` got."""
        self._add(request, row)
        request.n_computed += len(row.tokens)
        request.n_drawn += n_draws
        if n_draws:
            request.draw = self.n_logits - 1

    def _tell(self, request: Request) -> None:
        """What changed in the tables of a request that has a row."""
        for group, first, blocks in request.table.take_news():
            self.tables.append(TableChange(request.slot, group, first, blocks))

    def _add(self, request: Request, row: Row) -> None:
        self._tell(request)
        self.rows.append(row)
        self.owners.append(request)
        self.preemptions.append(request.n_preempted)
        self.n_logits += row.n_logits
        self.budget -= len(row.tokens)
        self.load = self.load.plus(chunk_load(len(row.tokens), row.start))
