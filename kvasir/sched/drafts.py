"""Who speculates in a step, and on what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from msgspec import structs

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.drawn import Drawn
from kvasir.core.errors import ConfigError, KvasirError
from kvasir.core.plan import MAX_DRAFTS, Move, Row, StepPlan, StepResult
from kvasir.sched.counters import Counters
from kvasir.sched.making import Making
from kvasir.sched.request import Request
from kvasir.sched.rows import accepted, draft_row, is_draft
from kvasir.speculate.base import Draft, Proposer
from kvasir.speculate.controller import Controller
from kvasir.timing.cost import CostModel, Load

MIN_OUTPUTS = 2
"""Outputs left below which a draft cannot save a step."""


class Drafts:
    """Asks the proposer once a step, for all that decode; without one nobody speculates."""

    def __init__(
        self,
        proposer: Proposer | None,
        config: SchedulerConfig,
        costs: CostModel,
        counters: Counters,
    ) -> None:
        """Raises ConfigError where layers with a state keep less than is drafted."""
        self._max_tokens = config.max_draft_tokens
        self._max_model_len = config.sizes.max_model_len
        states = [group for group in config.sizes.groups if group.state_bytes]
        self._has_states = bool(states)
        kept = min((group.drafts for group in states), default=self._max_tokens)
        if self._max_tokens > kept:
            raise ConfigError(
                f"{self._max_tokens} drafted tokens; layers with a state, which cannot take "
                f"rejected drafts back, keep the inputs of {kept}: draft fewer"
            )
        self._proposer = proposer if self._max_tokens else None
        self._controller = Controller(is_adaptive=config.adapts_drafts)
        self._costs = costs
        self._counters = counters
        self._running: dict[Request, Draft] = {}
        self._drawn = Drawn()

    def asked(self, ready: Sequence[Request]) -> dict[Request, Draft]:
        """What may follow the tokens of those for whom anything is proposed; all others go on
        without waiting."""
        if self._proposer is None:
            return {}
        able = [x for x in ready if x.max_outputs - x.n_drawn >= MIN_OUTPUTS and not x.is_behind]
        drafts = self._proposer.propose(able, self._max_tokens) if able else ()
        if any([draft.evidence for draft in drafts]):
            seconds = self._costs.costs.entry * sum([x.n_known for x in ready])
            n_others = len(ready) - len(able)
            drafts = self._controller.chosen(able, drafts, n_others, seconds)
        found = zip(able, drafts, strict=True)
        return {x: draft for x, draft in found if draft.tokens or draft.n_asked}

    def fitting(self, request: Request, draft: Draft, n_spare: int) -> Draft:
        """The part of ``draft`` within ``n_spare`` tokens, context and free blocks."""
        room = min(request.table.room(), self._max_model_len) - request.n_known
        draft = draft.head(max(0, min(n_spare, self._max_tokens, room)))
        n_left = request.max_outputs - request.n_drawn - 1
        draft = draft if draft.parents else draft.head(n_left)
        n_asked = min(draft.n_asked, MAX_DRAFTS, room - len(draft.tokens), n_left - 1)
        if self._has_states and draft.n_asked:
            raise KvasirError("the executor is asked for drafts over states, which none makes")
        if request.params.constraint:  # nobody makes masks for what the executor alone knows
            n_asked = 0
        return replace(draft, n_asked=max(0, n_asked)) if draft.n_asked else draft

    def rows(
        self, n_spare: int, ready: Sequence[Request], drafts: Mapping[Request, Draft]
    ) -> dict[Request, Row]:
        """Of those whose drafts fit; ``n_spare``: tokens of the budget that are left for them."""
        rows: dict[Request, Row] = {}
        for request in ready if drafts else ():
            if request not in drafts:
                continue
            draft = self.fitting(request, drafts[request], n_spare)
            if draft.tokens or draft.n_asked:
                n_spare -= len(draft.tokens)
                request.table.grow(request.n_known + len(draft.tokens) + draft.n_asked)
                rows[request] = draft_row(request, draft)
                self._running[request] = draft
        return rows

    def resolved(self, row: Row) -> Row:
        """A row of the oldest uncommitted plan with ids in the places of references to drafts."""
        if self._proposer is None:
            return row
        return structs.replace(row, tokens=self._drawn.ids(row.tokens))

    def take_moves(self, running: Sequence[Request]) -> tuple[Move, ...]:
        """Entries of accepted branches that are not in their places yet."""
        if self._proposer is None:
            return ()
        moves = tuple([move for request in running for move in request.moves])
        for request in running:
            request.moves.clear()
        return moves

    def ran(self, plan: StepPlan, owners: Sequence[Request], result: StepResult) -> None:
        """A plan is committed: what the executor drafted has ids from now on."""
        if self._proposer is None:
            return
        if not result.drafts and any(row.n_drafts for row in plan.rows):
            raise KvasirError("rows ask for drafts, and the executor has no draft program")
        self._drawn = Drawn.by(plan, result.outputs, result.drafts)
        for request, row, drafts in zip(owners, plan.rows, result.drafts, strict=False):
            n_known = len(request.tokens) if is_draft(row) else row.end - row.n_drafts + 1
            if drafts and n_known >= request.executor_draft[0]:
                sound = takewhile(lambda token: token >= 0, drafts)
                request.executor_draft = n_known, tuple(sound)

    def ended(self, request: Request) -> None:
        """It has no more rows."""
        if self._proposer is not None:
            self._running.pop(request, None)
            self._proposer.ended(request)
            self._controller.ended(request)

    def landed(self, plan: StepPlan, making: Making, result: StepResult) -> tuple[Load, float]:
        """A plan has run. What it would have been without its drafts, for who foretells steps, and
        how long it would have taken: drafted tokens cost less than those of prompts."""
        load, seconds, n_drafted = making.load, result.seconds, making.n_drafted
        if self._running:
            self._learn(plan, making.owners, result)
        if self._proposer is None or not seconds or load.tokens - n_drafted > load.rows:
            return load, seconds
        costs = self._costs.costs
        contexts = min(0.8 * seconds, costs.pair * load.pairs + costs.entry * load.entries)
        self._controller.decoded(load.tokens, seconds - contexts)
        alone = (seconds - contexts) / self._controller.over(load.tokens, n_drafted)
        return load._replace(tokens=load.tokens - n_drafted), alone + contexts

    def _learn(self, plan: StepPlan, owners: Sequence[Request], result: StepResult) -> None:
        """What became of drafts."""
        first = 0
        for request, row in zip(owners, plan.rows, strict=True):
            outputs = result.outputs[first : first + row.n_logits]
            first += row.n_logits
            if not is_draft(row) or (draft := self._running.pop(request, None)) is None:
                continue
            n_drawn = len(accepted(self.resolved(row), outputs))
            self._controller.drew(request, draft, n_drawn)
            self._counters.n_drafts += 1
            self._counters.n_drafted += len(row.tokens) - 1
            self._counters.n_accepted += n_drawn


def can_name(request: Request, draft: Draft) -> bool:
    """Whether a row can name the newest token, which ``draft`` follows.

    While it is still being drawn, nobody knows what may follow it but the executor, whose drafts
    are named as it is. All others are left out of this step, to speculate in the next.
    """
    return request.n_known == len(request.tokens) or draft.n_asked > 0
