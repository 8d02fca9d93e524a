"""Who speculates in a step, and on what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat, takewhile

from msgspec import structs

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.drawn import Drawn
from kvasir.core.errors import ConfigError, KvasirError
from kvasir.core.messages import EngineStats
from kvasir.core.plan import MAX_DRAFTS, Copy, Move, Row, StepPlan, StepResult, Transfer
from kvasir.sched.following import Following
from kvasir.sched.gaps import HeadGaps
from kvasir.sched.making import Making
from kvasir.sched.order import Account
from kvasir.sched.request import Request
from kvasir.sched.rows import accepted, draft_row, is_draft
from kvasir.speculate.base import Draft, Proposer
from kvasir.speculate.controller import Ask, Controller
from kvasir.speculate.several import SeveralDrafters
from kvasir.timing import undrafted
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
        counters: EngineStats,
        account: Account,
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
        self._controller = Controller(
            is_adaptive=config.adapts_drafts,
            n_least=config.min_draft_tokens,
            draft_share=config.draft_share,
            is_head=config.draft_is_head,
        )
        self._is_head = config.draft_is_head
        self._sees = config.sizes.n_candidates > 0
        self._gaps = HeadGaps(config.sizes.block_size) if config.head_may_rest else None
        self._following: Following | None = None
        if config.lazy_drafts:
            sizes = config.sizes
            self._following = Following(sizes.block_size, sizes.max_num_batched_tokens)
        self._costs = costs
        self._counters = counters
        self._account = account
        self._running: dict[Request, Draft] = {}
        self._drawn = Drawn()
        self._off: dict[Request, str] = {}
        """Why those that decode in the plan in the making are not drafted for."""

    def asked(self, ready: Sequence[Request]) -> dict[Request, Draft]:
        """What may follow the tokens of those for whom anything is proposed; all others go on
        without waiting."""
        if self._proposer is None:
            return {}
        able = [x for x in ready if _may_draft(x)]
        offered = drafts = self._proposed(self._proposer, able) if able else ()
        seconds = self._costs.costs.entry * sum([x.n_known for x in ready])
        if any([draft.evidence for draft in drafts]):
            n_others = len(ready) - len(able)
            drafts = self._controller.chosen(able, drafts, n_others, seconds)
        if any([draft.n_asked for draft in drafts]):
            drafts = self._asking(able, drafts, len(ready), seconds)
        found = zip(able, drafts, strict=True)
        chosen = {x: draft for x, draft in found if draft.tokens or draft.n_asked}
        self._off = {}
        if len(chosen) < len(ready):
            offers = zip(able, offered, strict=True)
            self._off = {x: self._why(x, draft) for x, draft in offers if x not in chosen}
        return chosen

    def _why(self, request: Request, offered: Draft) -> str:
        """Nothing of ``offered`` was taken."""
        if not offered.tokens and not offered.n_asked:
            return undrafted.NO_MATCH
        if offered.tokens or self._most_asked(request, offered):
            return undrafted.UNPAID
        if request.params.constraint:
            return undrafted.MASKS
        if self._gaps is not None and not self._gaps.has_all(request):
            return undrafted.MISSED
        n_left = request.max_outputs - request.n_drawn
        return undrafted.BUDGET if n_left > MIN_OUTPUTS else undrafted.SHORT

    def _proposed(self, proposer: Proposer, able: Sequence[Request]) -> Sequence[Draft]:
        """For each no more than it wants."""
        if not isinstance(proposer, SeveralDrafters):
            drafts = proposer.propose(able, self._max_tokens)
            return [self._grown(x, y, self._max_tokens) for x, y in zip(able, drafts, strict=True)]
        each, most = proposer.propose_each(able, self._max_tokens), proposer.n_tokens
        return [
            self._controller.best(
                x,
                [
                    self._grown(x, replace(y, n_asked=self._most_asked(x, y)), most[y.drafter])
                    for y in own
                ],
            )
            for x, own in zip(able, each, strict=True)
        ]

    def _grown(self, request: Request, draft: Draft, n_most: int) -> Draft:
        wanted = request.params.max_drafts
        n_most = min(n_most, self._max_tokens)
        return self._controller.grown(request, draft, n_most if wanted < 0 else min(n_most, wanted))

    def fitting(self, request: Request, draft: Draft, n_spare: int) -> Draft:
        """The part of ``draft`` within ``n_spare`` tokens, context and free blocks."""
        room = min(request.table.room(), self._max_model_len) - request.n_known
        draft = draft.head(max(0, min(n_spare, self._max_tokens, room)))
        n_left = request.max_outputs - request.n_drawn - 1
        draft = draft if draft.parents else draft.head(n_left)
        if self._has_states and draft.n_asked:
            raise KvasirError("the executor is asked for drafts over states, which none makes")
        if not draft.n_asked:
            return draft
        n_asked = min(self._most_asked(request, draft), room - len(draft.tokens))
        return replace(draft, n_asked=max(0, n_asked))

    def _most_asked(self, request: Request, draft: Draft) -> int:
        """Tokens that can be asked for behind those of ``draft``, blocks aside."""
        if request.params.constraint:  # nobody makes masks for what the executor alone knows
            return 0
        if draft.n_asked and self._gaps is not None and not self._gaps.has_all(request):
            return 0
        n_left = request.max_outputs - request.n_drawn - 2
        room = self._max_model_len - request.n_known - len(draft.tokens)
        wanted = request.params.max_drafts
        most = MAX_DRAFTS if wanted < 0 else min(wanted, MAX_DRAFTS)
        return max(0, min(draft.n_asked, most, room, n_left))

    def _asking(
        self, able: Sequence[Request], drafts: Sequence[Draft], n_ready: int, seconds: float
    ) -> list[Draft]:
        """With as many tokens asked for as pays. What some lack comes in chunks."""
        most_asked = map(self._most_asked, able, drafts)
        asks = [
            Ask(x, n, draft.evidence, self._lag(x), x.max_outputs - x.n_drawn, draft.drafter)
            for x, draft, n in zip(able, drafts, most_asked, strict=True)
        ]
        counts = self._controller.asked(asks, n_ready - len(able), seconds)
        return [replace(x, n_asked=n) for x, n in zip(drafts, counts, strict=True)]

    def _lag(self, request: Request) -> int:
        return 0 if self._following is None else self._following.lag(request)

    def rows(
        self, n_spare: int, ready: Sequence[Request], drafts: Mapping[Request, Draft]
    ) -> dict[Request, Row]:
        """Of those whose drafts fit; ``n_spare``: tokens of the budget that are left for them."""
        rows: dict[Request, Row] = {}
        if self._following is not None:
            self._following.begin(self._controller.chunk(len(ready)))
        for request in ready if drafts else ():
            if request not in drafts:
                continue
            draft = self.fitting(request, drafts[request], n_spare)
            if self._following is not None and (draft.tokens or draft.n_asked):
                self._off[request] = undrafted.BEHIND
                draft = self._following.follow(request, draft)
            if draft.tokens or draft.n_asked:
                n_spare -= len(draft.tokens)
                request.table.grow(request.n_known + len(draft.tokens) + draft.n_asked)
                rows[request] = draft_row(request, draft)
                self._running[request] = draft
        if self._proposer is not None and len(rows) < len(ready):
            self._count([x for x in ready if x not in rows])
        return rows

    def _count(self, requests: Sequence[Request]) -> None:
        """They decode, and have no drafts."""
        for request in requests:
            reason = self._off.get(request, "") or _own_reason(request)
            counts = request.drafting.undrafted
            counts[reason] = counts.get(reason, 0) + 1

    def resolved(self, row: Row) -> Row:
        """A row of the oldest uncommitted plan with ids in the places of references to drafts."""
        if self._proposer is None:
            return row
        return structs.replace(row, tokens=self._drawn.ids(row.tokens))

    def take_moves(self, running: Sequence[Request]) -> tuple[Move, ...]:
        """Entries of accepted branches that are not in their places yet."""
        if self._proposer is None:
            return ()
        moves = tuple([move for request in running for move in request.drafting.moves])
        for request in running:
            request.drafting.moves.clear()
        return moves

    def take_follows(
        self, making: Making, copies: Sequence[Copy], loads: Sequence[Transfer]
    ) -> tuple[Row, ...] | None:
        """Of the plan of ``making``."""
        if self._gaps is not None:
            return self._gaps.take(making.owners, making.rows, copies, loads)
        if self._following is None:
            return None
        return self._following.take(making.owners, making.rows, copies, loads)

    def ran(self, plan: StepPlan, owners: Sequence[Request], result: StepResult) -> None:
        """A plan is committed: what the executor drafted has ids from now on."""
        if self._proposer is None:
            return
        if self._sees:
            self._show(self._proposer, plan, owners, result)
        if not result.drafts and any(row.n_drafts for row in plan.rows):
            raise KvasirError("rows ask for drafts, and the executor has no draft program")
        self._drawn = Drawn.by(plan, result.outputs, result.drafts, result.siblings)
        if self._following is not None:
            for request, row in zip(owners, plan.rows, strict=True):
                if is_draft(row):
                    self._following.settled(request, row.n_drafts)
        siblings = result.siblings or repeat(())
        for request, row, drafts, own in zip(
            owners, plan.rows, result.drafts, siblings, strict=False
        ):
            n_known = len(request.tokens) if is_draft(row) else row.end - row.n_drafts + 1
            if drafts and n_known >= request.drafting.following[0]:
                sound = tuple(takewhile(lambda token: token >= 0, drafts))
                request.drafting.following = n_known, sound, own

    def _show(
        self,
        proposer: Proposer,
        plan: StepPlan,
        owners: Sequence[Request],
        result: StepResult,
    ) -> None:
        """What is likeliest to follow each token that has a logit row."""
        first = 0
        for request, row in zip(owners, plan.rows, strict=True):
            outputs = result.outputs[first : first + row.n_logits]
            first += row.n_logits
            if outputs:
                tokens = self._drawn.ids(row.tokens[-row.n_logits :])
                likeliest = [output.candidates for output in outputs]
                proposer.saw(request, tokens, row.parents, likeliest)

    def ended(self, request: Request) -> Mapping[str, int]:
        """It has no more rows: by their reasons the steps in which it had no drafts."""
        counts = request.drafting.undrafted
        if self._proposer is not None:
            if request.n_drawn and request.max_outputs < MIN_OUTPUTS:
                counts[undrafted.SHORT] = 1  # drawn with its prompt
            self._running.pop(request, None)
            self._proposer.ended(request)
            if self._following is not None:
                self._following.ended(request)
            if self._gaps is not None:
                self._gaps.ended(request)
            self._controller.ended(request)
        return counts

    def landed(self, plan: StepPlan, making: Making, result: StepResult) -> tuple[Load, float]:
        """A plan has run. What it would have been without its drafts, for who foretells steps, and
        how long it would have taken, towers aside: drafted tokens cost less than those of
        prompts."""
        load, n_drafted = making.load, making.n_drafted
        seconds = result.seconds - result.tower_seconds
        if result.draft_seconds:
            seconds -= result.draft_seconds
            self._counters.draft_seconds += result.draft_seconds
            passes = draft_passes(plan, is_head=self._is_head)
            self._controller.drafted(passes, result.draft_seconds)
            self._charge(plan, making.owners, result.draft_seconds)
        n_accepted = self._counters.n_accepted
        if self._running:
            self._learn(plan, making, result)
        if self._proposer is None or not seconds or load.tokens - n_drafted > load.rows:
            return load, seconds
        costs = self._costs.costs
        contexts = min(0.8 * seconds, costs.pair * load.pairs + costs.entry * load.entries)
        self._controller.decoded(load.tokens, seconds - contexts)
        alone = (seconds - contexts) / self._controller.over(load.tokens, n_drafted)
        if n_drafted or result.draft_seconds:
            share = (self._counters.n_accepted - n_accepted) / load.rows
            spent = seconds - contexts - alone + result.draft_seconds
            self._counters.seconds_won += share * (alone + contexts) - spent
        return load._replace(tokens=load.tokens - n_drafted), alone + contexts

    def _charge(self, plan: StepPlan, owners: Sequence[Request], seconds: float) -> None:
        """What the draft program took is of those it was asked for, by their tokens."""
        n_asked = sum([row.n_drafts for row in plan.rows])
        for request, row in zip(owners, plan.rows, strict=True):
            if row.n_drafts:
                self._account.owes(request, seconds * row.n_drafts / n_asked)

    def _learn(self, plan: StepPlan, making: Making, result: StepResult) -> None:
        """What became of drafts."""
        first = 0
        rows = zip(making.owners, making.preemptions, plan.rows, strict=True)
        for request, n_preempted, row in rows:
            outputs = result.outputs[first : first + row.n_logits]
            first += row.n_logits
            if not is_draft(row) or (draft := self._running.pop(request, None)) is None:
                continue
            path = [node - 1 for node in accepted(self.resolved(row), outputs)]
            n_drawn = len(path)
            self._controller.drew(request, draft, path)
            # what was computed before it was preempted does not count as computed
            n_kept = 1 + n_drawn if request.n_preempted == n_preempted else 0
            self._account.verified(request, row, n_kept)
            n_hits = min(n_drawn, draft.n_predicted)
            request.drafting.n_hits += n_hits
            request.drafting.n_misses += draft.n_predicted - n_hits
            self._counters.verified(draft.drafter, len(row.tokens) - 1, n_drawn)


def _may_draft(request: Request) -> bool:
    """Whether drafts can save it a step, and it wants them."""
    is_long = request.max_outputs - request.n_drawn >= MIN_OUTPUTS
    return is_long and request.params.max_drafts != 0 and not request.is_behind


def _own_reason(request: Request) -> str:
    """Why nobody was asked, or, where somebody was, what was left out of the step."""
    if request.is_behind:
        return undrafted.FORCED
    if request.params.max_drafts == 0:
        return undrafted.REFUSED
    is_long = request.max_outputs - request.n_drawn >= MIN_OUTPUTS
    return undrafted.BUDGET if is_long else undrafted.SHORT


def draft_passes(plan: StepPlan, *, is_head: bool = False) -> list[int]:
    """Tokens of each pass of a draft program in a step; a head gives the first of those that are
    asked for with what it takes in."""
    rows = plan.rows if plan.follows is None else plan.follows
    asked = [row.n_drafts for row in plan.rows if row.n_drafts]
    passes = [sum([len(row.tokens) for row in rows])]
    passes += [sum([n > j for n in asked]) for j in range(int(is_head), max(asked, default=0))]
    return [n for n in passes if n]


def can_name(request: Request, draft: Draft) -> bool:
    """Whether a row can name the newest token, which ``draft`` follows.

    While it is still being drawn, nobody knows what may follow it but the executor, whose drafts
    are named as it is. All others are left out of this step, to speculate in the next.
    """
    return request.n_known == len(request.tokens) or draft.n_asked > 0
