"""Continuous batching with chunked prefill: decides each step, and books what it gave.

No prefill or decode phases: every request has ``n_computed`` chasing ``n_known`` under one budget
of tokens. Rows of one token come first, then chunks of prompts in the order of the policy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.errors import KvasirError
from kvasir.core.messages import DrafterStats, EngineStats, TokenEvent
from kvasir.core.plan import Row, RowOutput, StepPlan, StepResult, Transfer
from kvasir.core.request import LOWEST, EngineRequest
from kvasir.kv.manager import KVCacheManager
from kvasir.kv.tier import Disk
from kvasir.sched.admit import check_priority, max_outputs_of
from kvasir.sched.book import book, book_draft, book_forced, book_vector, n_settled, vector_of
from kvasir.sched.counters import told
from kvasir.sched.drafts import Drafts, can_name
from kvasir.sched.fair import make_policy
from kvasir.sched.making import Making
from kvasir.sched.prompts import Prompts
from kvasir.sched.queues import Queues
from kvasir.sched.request import PromptLists, Request, by_phase, new_request
from kvasir.sched.rows import first_draw, forced_rows, gives_vector, is_draft
from kvasir.sched.streams import abreast
from kvasir.sched.towers import Towers
from kvasir.speculate.base import Proposer
from kvasir.timing.cost import CostModel
from kvasir.timing.outlook import Outlook
from kvasir.timing.pace import make_paces
from kvasir.timing.timekeeper import Clock, Timekeeper
from kvasir.timing.timeline import Timeline

MAX_FLIGHTS = 2
"""Plans made and not committed: one runs, one is ready to follow it."""
CHARGE_STEPS = 16
"""Plans after which tenants are charged for their outputs, of which they pay the first ahead."""


class Scheduler:
    """Not thread-safe. At most two plans are uncommitted; they are committed in their order."""

    def __init__(
        self,
        config: SchedulerConfig,
        proposer: Proposer | None = None,
        key_root: str = "",
        costs: CostModel | None = None,
        timeline: Timeline | None = None,
        disk: Disk | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """``key_root``: names what cached entries depend on besides tokens (``engine.keys``).
        ``costs``: what a step is expected to cost; learns from every step. ``timeline``: where to
        write down what happens; default: one of its own. ``disk``: keeps evicted blocks.
        ``clock``: seconds that deadlines are measured in."""
        self.config = config
        self.costs = costs or CostModel()
        self.timeline = Timeline() if timeline is None else timeline
        self._paces = make_paces(self.costs, config.itl_target)
        self._kept_drafts = max((group.drafts for group in config.sizes.groups), default=0)
        seconds = self.costs.chunk_seconds
        self._kv = KVCacheManager(
            config, key_root, lambda holder: self._making.start_of(holder), seconds, disk, clock
        )
        self._requests: dict[int, Request] = {}
        self._order, self._account = make_policy(config.sharing, self.costs)
        self._counters = EngineStats(drafters=tuple(map(DrafterStats, config.drafters)))
        self._drafts = Drafts(proposer, config, self.costs, self._counters, self._account)
        self._queues = Queues(
            self._kv, self._order, self._account, self.timeline, self._counters, config
        )
        outlook = Outlook(self.costs, config.sizes.max_num_seqs)
        self._timekeeper = Timekeeper(self._queues, outlook, clock)
        self._making = Making(0)
        self._towers = Towers(self.costs)
        self._prompts = Prompts(self._queues, self._account, config, self._towers)
        self._flights: deque[tuple[StepPlan, Making]] = deque()
        self._uncommitted: list[tuple[Request, int]] = []
        self._events: list[TokenEvent] = []
        self._n_arrivals = 0
        self._n_plans = 0
        self._lists = PromptLists()
        self._jumps = False  # somebody was told of forced tokens

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises RequestError when it can never run.

        An id that is taken is a bug of the caller, not of the request: KvasirError, because an
        error event would end the other request of that id.
        """
        if request.id in self._requests:
            raise KvasirError(f"request id {request.id} is running already: choose another")
        self._counters.n_received += 1
        self._counters.tokens_received += len(request.prompt)
        max_outputs = max_outputs_of(request, self.config)
        check_priority(request, self.config.sharing.policy)
        state = new_request(
            request,
            self._n_arrivals,
            max_outputs,
            self._kv.new_table(),
            prompt=self._lists.of(request.prompt),
            now=self.timeline.clock(),
            sees_ahead=bool(self.config.span_tokens),
        )
        self._n_arrivals += 1
        state.finish = state.ending()
        if state.finish is not None:
            stop_id = state.tokens[-1] if state.finish == "stop" else None
            self._events.append(TokenEvent(request.id, finish=state.finish, stop_id=stop_id))
            return
        n_cached = self._kv.n_cached(state, state.n_given) if state.standing.has_deadline else 0
        refusal = self._timekeeper.refusal(state, n_cached, is_taken=request.is_resumed)
        if refusal is not None:
            self._events.append(refusal)
            return
        self._requests[request.id] = state
        self._counters.tokens_waiting += state.n_prompt
        self.timeline.queued(request.id, state.n_prompt)
        self._order.push(state)
        if not request.is_resumed:
            self._counters.prompt_tokens += state.n_prompt

    def cancel(self, request_id: int) -> bool:
        """End a request now; its row in a running step is dropped. False when it ended before."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._counters.n_cancelled += 1
        self._close(request, TokenEvent(request_id, finish="cancelled"))
        return True

    def find(self, request_id: int) -> Request | None:
        """One that has not ended."""
        return self._requests.get(request_id)

    def fail(self, request: Request, error: KvasirError) -> None:
        """End a running request now, as ``cancel`` does."""
        self._counters.n_failed += 1
        self._close(request, TokenEvent.failed(request.id, error))

    def jump(self, request: Request, tokens: Sequence[int]) -> None:
        """``tokens`` are all that may follow the outputs of a decoding request, one by one; the
        first of them may be drawn already. They are told at once and computed in one row, or, where
        logprobs are wanted, drawn in one."""
        n_drawn = request.n_drawn - request.n_outputs
        if len(tokens) <= n_drawn:
            return
        self._jumps = request.masked.is_jumping = True
        if request.params.n_logprobs >= 0:
            request.masked.forced = request.n_outputs, tuple(tokens)
            return
        event = book_forced(request, tokens)
        self._tell(request, event)
        if request.finish is not None:
            self._counters.n_forced += len(event.tokens) - n_drawn
            self._close(request)

    def release(self, request_id: int) -> None:
        """Nobody goes on with an ended request any more: its blocks are not held longer."""
        self._kv.holders.let_go(request_id)

    def plan(self) -> StepPlan | None:
        """The next step; None when nothing can be computed before a running step is committed.

        May be called while the previous plan runs: tokens that it will draw are named by their row.
        """
        if len(self._flights) == MAX_FLIGHTS:
            raise KvasirError(f"{MAX_FLIGHTS} plans are uncommitted: commit the older one first")
        self._kv.holders.expire()
        for news in self._timekeeper.late():
            self._close(self._requests[news.id], news)
        n_most, whole = self.config.sizes.max_num_batched_tokens, self.config.whole_prompts
        self._making = making = Making(n_most, whole, *self._paces)
        self._prompts.begin(making)
        running = self._queues.running
        ready, others = by_phase(running)
        making.n_kept = self.config.span_tokens if others or len(self._order) else 0
        self._plan_decodes(making, ready, self._order.claims(others))
        self._account.charge(running[self._n_plans % CHARGE_STEPS :: CHARGE_STEPS])  # some a plan
        self._prompts.plan(making, others)
        is_empty = not (making.rows or making.towers or making.opens)
        return None if is_empty else self._close_plan(making)

    def commit(self, plan: StepPlan, result: StepResult) -> tuple[TokenEvent, ...]:
        """Book the outputs of the oldest uncommitted plan; what each request's client is told."""
        making = self._landed(plan, result)
        self._book_decodes(making, result.outputs)
        self._book_others(making, result)
        self._drafts.ran(plan, making.owners, result)
        return self.take_events()

    def reset_prefix_cache(self) -> None:
        """Requests from now on find nothing of what was computed before."""
        self._kv.reset()

    def forget_media(self) -> None:
        """The next plan has the executor forget the rows that towers made."""
        self._towers.forget()

    def unsaved(self) -> Iterator[Transfer]:
        """Cached blocks that are not on disk. Nothing may be planned meanwhile."""
        return self._kv.unsaved()

    def take_events(self) -> tuple[TokenEvent, ...]:
        """News that no commit has handed out yet: cancelled and immediately finished requests."""
        events, self._events = tuple(self._events), []
        return events

    @property
    def is_stalled(self) -> bool:
        """Nothing can be computed before blocks have come from disk."""
        return self._kv.is_loading and not (self._flights or self._queues.running)

    @property
    def has_work(self) -> bool:
        """Something is left to plan, to commit or to tell."""
        return bool(self._requests or self._flights or self._events)

    @property
    def newest(self) -> tuple[Sequence[Request], float, float, float]:
        """What ``Making.told`` says of the newest plan."""
        return self._making.told(self.costs)

    @property
    def running(self) -> Sequence[Request]:
        """In the order of seniority; read only."""
        return self._queues.running

    def stats(self) -> EngineStats:
        counters = self._counters
        counters.n_running, counters.n_waiting = len(self._queues.running), len(self._order)
        return told(counters, self._kv, self._timekeeper)

    def check(self) -> None:
        """Raises KvasirError unless queues, blocks and slots are consistent."""
        self._queues.check()
        queued = {request.id for request in (*self._queues.running, *self._order)}
        if queued != self._requests.keys():
            raise KvasirError(f"queued requests {queued} are not the known {set(self._requests)}")
        n_used = sum(pool.n_used for pool in self._kv.cache.pools)
        if n_used and not (queued or self._flights or self._kv.holders.n_kept):
            raise KvasirError(f"idle, but {n_used} blocks are used")

    def _plan_decodes(self, making: Making, ready: list[Request], n_claimed: int) -> None:
        """Requests that lack their newest token only; what the budget leaves may go to drafts, for
        which that token must be named. Those of the lowest class leave ``n_claimed`` tokens."""
        if n_claimed and len(ready) + n_claimed > making.budget:
            n_higher = sum(request.rank != LOWEST for request in ready)
            ready = ready[: max(n_higher, making.budget - n_claimed)]
        if making.tenant_pace is not None and self._account.is_shared:
            ready, making.contexts = abreast(ready, making.tenant_pace)
        drafts = self._drafts.asked(ready)
        if drafts:
            ready = [x for x in ready if x not in drafts or can_name(x, drafts[x])]
        ready = self._queues.reserve(ready[: making.budget])
        n_spare = max(0, making.budget - len(ready) - making.n_kept)
        forced = forced_rows(n_spare, ready, self._kept_drafts or n_spare) if self._jumps else {}
        n_spare -= sum([len(row.tokens) - 1 for row in forced.values()])
        rows = forced | self._drafts.rows(n_spare, ready, drafts)
        making.decode([x for x in ready if x not in rows] if rows else ready)
        for request, row in rows.items():
            making.draft(request, row, is_forced=request in forced)
        making.wait_for(ready or [x for x in self._queues.running if x.is_streaming])

    def _close_plan(self, making: Making) -> StepPlan:
        saves, loads, copies = self._kv.take_transfers()
        plan = StepPlan(
            step=self._n_plans,
            rows=tuple(making.rows),
            opens=tuple(making.opens),
            tables=tuple(making.tables),
            commits=making.commits(self._uncommitted),
            moves=self._drafts.take_moves(self._queues.running),
            copies=copies,
            saves=saves,
            loads=loads,
            towers=tuple([planned.run for planned in making.towers]),
            forgets=self._towers.close(making),
            follows=self._drafts.take_follows(making, copies, loads),
        )
        self._uncommitted.clear()
        self._n_plans += 1
        self._flights.append((plan, making))
        return plan

    def _landed(self, plan: StepPlan, result: StepResult) -> Making:
        """The oldest plan has run: what is learnt of it besides what its rows gave."""
        if not self._flights or self._flights[0][0] is not plan:
            raise KvasirError(f"plan {plan.step} is not the oldest uncommitted one")
        making = self._flights[0][1]
        if len(result.outputs) != making.n_logits:
            raise KvasirError(f"{len(result.outputs)} outputs for {making.n_logits} logit rows")
        self._flights.popleft()
        self._kv.committed()
        self._towers.landed(making, result.tower_seconds, self._account)
        if making.rows:
            self.costs.observe(*self._drafts.landed(plan, making, result))
        self.timeline.step(
            plan,
            [request.id for request in making.owners],
            result,
            n_waiting=len(self._order),
            blocks_free=self._kv.cache.n_available,
            n_decodes=making.n_decodes,
            forced=making.forced,
            towers=making.tower_owners,
        )
        self._counters.step += 1
        self._counters.step_seconds += result.seconds
        self._counters.n_forced += making.n_forced
        return making

    def _book_decodes(self, making: Making, outputs: Sequence[RowOutput]) -> None:
        """One drawn token for each of the first rows: what ``_book`` does, sooner for the tokens
        that nearly all of them are."""
        tell, n_told, preempted = self._events.append, 0, making.preemptions
        for i, request, output in zip(
            range(making.n_decodes), making.owners, outputs, strict=False
        ):
            token, tokens = output.token, request.tokens
            n_tokens = len(tokens)
            is_plain = n_tokens < request.plain_until and token >= 0
            if is_plain and token not in request.params.stop_ids and not output.logits_hash:
                tokens.append(token)
                tell(TokenEvent(request.id, (token,)))
                n_told += 1
                if n_tokens >= request.vouched.news_at and request.n_preempted == preempted[i]:
                    self._kv.commit(request, n_tokens, is_proven=True)
            elif request.finish is None:
                is_current = request.n_preempted == preempted[i]
                self._book(request, making.rows[i], (output,), is_current)
        self._counters.output_tokens += n_told

    def _book_others(self, making: Making, result: StepResult) -> None:
        first, vectors = making.n_decodes, iter(result.vectors)
        for row, request, before in zip(*making.others(), strict=True):
            outputs = result.outputs[first : first + row.n_logits]
            first += row.n_logits
            vector = vector_of(vectors, request) if gives_vector(request, row) else None
            if request.finish is None:
                self._book(request, row, outputs, request.n_preempted == before, vector)

    def _book(
        self,
        request: Request,
        row: Row,
        outputs: tuple[RowOutput, ...],
        is_current: bool,
        vector: bytes | None = None,
    ) -> None:
        """``is_current``: not preempted since the row was planned."""
        event: TokenEvent | None
        if first_draw(row) not in (-1, request.n_outputs):
            return  # what it would give was told before
        if vector is not None:
            event = book_vector(request, vector)
        elif is_draft(row):
            event = book_draft(request, self._drafts.resolved(row), outputs, is_current)
        else:
            event = book(request, row, outputs, is_current)
        if event is not None:
            self._tell(request, event)
        if is_current and request.finish != "error":
            n_tokens = n_settled(request, row)
            if self._kept_drafts and is_draft(row):
                n_tokens = row.start + 1  # states take the others in with the next row
            if n_tokens >= request.vouched.news_at:
                self._kv.commit(request, n_tokens, is_proven=bool(outputs or vector))
        elif request.error is not None and request.error.code == "model_numerics":
            self._kv.distrust(request)
        if request.finish is not None:
            self._close(request)

    def _tell(self, request: Request, event: TokenEvent) -> None:
        self._events.append(event)
        self._counters.output_tokens += len(event.tokens)
        if request.params.needs_outputs:
            self._uncommitted.extend((request, token) for token in event.tokens)
        self._counters.n_failed += event.finish == "error"

    def _close(self, request: Request, news: TokenEvent | None = None) -> None:
        """``news``: its last, when no result of a step is."""
        if news is not None:
            request.finish = news.finish
            self._events.append(news)
        request.plain_until = 0
        if request.slot < 0 and not request.n_preempted:
            self._counters.tokens_waiting -= request.n_prompt
        self._timekeeper.ended(request)
        self.timeline.undrafted(request.id, self._drafts.ended(request))
        self._queues.release(request)
        self.timeline.finished(request.id, request.finish or "")
        del self._requests[request.id]
