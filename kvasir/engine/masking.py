"""Brings the masks of constrained requests to the steps that wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from math import inf
from weakref import WeakValueDictionary

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams, mask_words
from kvasir.core.plan import NOT_DRAWN, NOTHING_LEFT, SlotOpen, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.engine.filling import (
    Filling,
    StepMask,
    Wanted,
    asked_within,
    bring_known,
    note_ends,
)
from kvasir.engine.looks import (
    PATIENCE,
    Bring,
    Crew,
    Followed,
    Look,
    MaskCost,
    Path,
    Spent,
    close,
    reopen,
)
from kvasir.exec.base import Filled, Handle
from kvasir.exec.masks import MADE, WAITING, ConstrainedSlots
from kvasir.grammar.thinking import closed_at
from kvasir.sampling.masks import Masks
from kvasir.sched.request import Request
from kvasir.sched.scheduler import Scheduler

LATE_SECONDS = 0.005
"""After which a step waits for no mask, unless it takes longer itself."""
MAX_SECONDS = 1.0
"""Of the processor, of one call for one request, which ends with a slower one. To open one is no
such call: the first of all reads the vocabulary, which no request is to blame for."""
CPU_SECONDS = 0.3
CPU_SECONDS_EACH = 0.002
"""That the masks of one constraint of a tenant may take: so much and, for each call, so much more.
There are grammars that take longer with each token, and processors are everybody's."""


class Masking:
    """Follows plans and results, which say all: the constraint of each slot, what was put out
    there, and which rows wait for a mask. A request whose masks fail, or take too long, ends."""

    def __init__(
        self, masks: Masks | None, scheduler: Scheduler, sizes: EngineSizes, *, jumps: bool
    ) -> None:
        """``jumps``: what is forced has no steps of its own."""
        self._masks = masks
        self._scheduler = scheduler
        self._n_words = mask_words(sizes.vocab_size)
        self._jumps = jumps
        self._patience = LATE_SECONDS
        if any(group.state_bytes for group in sizes.groups):
            self._patience = inf  # a state cannot take a token a second time
        self._slots = ConstrainedSlots()
        self._open: dict[int, Followed] = {}
        """By slot, of requests that keep to a constraint."""
        self._crew = Crew()
        self._keys = count()
        self._filling: Filling | None = None
        """What the newest step makes, and nobody has looked at."""
        self._left: dict[int, set[int]] = {}
        """By step the logit rows that it waits for no more."""
        self._shared: WeakValueDictionary[tuple[str, str], Spent] = WeakValueDictionary()
        """By tenant and constraint."""
        self._failed: dict[int, Exception] = {}
        """By slot, of requests that do not know it yet."""
        self._prepared: dict[int, Callable[[], bool]] = {}
        """By request: held, so that nothing has to be made again inside of a step."""
        self.n_masks = 0
        self.seconds = 0.0
        """That masks took."""
        self._closing: set[int] = set()
        """Ids of requests whose reasoning shall end."""
        self._closed: list[tuple[int, int]] = []
        """Their ids and numbers of outputs, of those that nobody was told of."""

    def prepare(self, request_id: int, constraint: str) -> None:
        """A request with it has arrived. Raises RequestError where there are no masks."""
        if not constraint:
            return
        if self._masks is None:
            raise RequestError("this engine has no masks: send requests without a constraint")
        self._prepared[request_id] = self._masks.prepare(constraint)

    def is_ready(self, request_id: int) -> bool:
        """Whether it can be queued."""
        prepared = self._prepared.get(request_id)
        return prepared is None or prepared()

    def ended(self, request_id: int) -> None:
        """Nothing is asked of its constraint any more."""
        self._prepared.pop(request_id, None)

    def end_thinking(self, request_id: int) -> None:
        """Its reasoning ends as soon as no mask is under way that knows nothing of it."""
        self._closing.add(request_id)

    def closed(self) -> tuple[TokenEvent, ...]:
        """What tells of reasoning that was ended since the last time."""
        found, self._closed = self._closed, []
        return tuple(TokenEvent(request_id, closes_at=n) for request_id, n in found)

    def drew(self) -> None:
        """A plan is committed."""
        for slot in [slot for slot, one in self._open.items() if one.request.slot != slot]:
            self._close(slot)
        while self._closing:
            request = self._scheduler.find(self._closing.pop())
            if request is not None:
                self._close_thinking(request)

    def _close_thinking(self, request: Request) -> None:
        """No mask of what follows its outputs is made."""
        before, n = request.params.constraint, request.n_outputs
        constraint = closed_at(before, n)
        if constraint == before:
            return
        request.params = structs.replace(request.params, constraint=constraint)
        self._closed.append((request.id, n))
        found = self._open.get(request.slot)
        if found is not None and found.request is request:
            self._close(request.slot)
            self._follow(request, found.spent)

    def heard(self, plan: StepPlan, result: StepResult) -> StepResult:
        """``result``, in which rows that their masks were late for drew nothing."""
        left = self._left.pop(plan.step, None)
        if left is None:
            return result
        outputs = list(result.outputs)
        for row in left:
            if outputs[row].token == NOTHING_LEFT:
                outputs[row] = structs.replace(outputs[row], token=NOT_DRAWN)
        return replace(result, outputs=tuple(outputs))

    def decides(self, plan: StepPlan) -> bool:
        """Whether what is forced behind the only draw of ``plan`` says what the next one is."""
        if not self._jumps or len(plan.rows) != 1:
            return False
        (row,) = plan.rows
        return row.n_logits > 0 and row.slot in self._open

    def jump(self) -> None:
        """Before a plan, while those that are under way have their masks: what is forced of the
        answers so far is told; whose mask is late is in no plan before it has come."""
        self.settle()
        if not self._open:
            return
        running = {
            slot: one
            for slot, one in self._open.items()
            if one.request.slot == slot and (self._jumps or one.look or one.request.masked.is_late)
        }
        looks = {}
        for slot, followed in running.items():
            request = followed.request
            if followed.look is not None:
                self._take(slot)
            elif self._jumps and _can_jump(request) and followed.n_outputs != request.n_outputs:
                looks[slot] = self._look(slot)
        self._await(looks, self._patience)
        for followed in running.values():
            request = followed.request
            request.masked.is_late = followed.look is not None or (
                request.masked.is_late and request.n_drawn > request.n_outputs
            )
            is_known = followed.n_outputs == request.n_outputs and not request.masked.is_late
            if is_known and followed.chain and _can_jump(request):
                self._scheduler.jump(request, followed.chain)
        self._tell()

    def rest(self) -> None:
        """Nothing can be computed: wait a little, if that is for a mask."""
        if any(one.look is not None for one in self._open.values()):
            time.sleep(LATE_SECONDS / 4)

    def fill(self, plan: StepPlan, handle: Handle, seconds: float) -> None:
        """What the started step waits for, which is expected to take ``seconds``; the one before it
        ``drew``."""
        rows = self._slots.rows(plan)
        if plan.opens:
            self._opened(plan.opens)
        if not rows:
            return
        by_slot: dict[int, list[tuple[int, Path]]] = {}
        for i, (slot, path) in rows.items():
            one = self._open.get(slot)
            if one is not None and one.request.slot == slot:
                by_slot.setdefault(slot, []).append((i, path))
            else:  # its request has ended
                handle.fill(i, np.zeros(self._n_words, np.uint32))
        patience = max(seconds, self._patience)
        wanted = bring_known(handle, by_slot, self._open)
        fills = handle.fills
        if fills is not None and (asked := asked_within(wanted, self._open)):
            fills.put([(mask.row, mask.fill) for mask in asked])
            self._filling = Filling(plan, handle, fills, asked, patience)
            for mask in asked:
                del wanted[mask.slot]
        if wanted:
            self._look_for(plan, handle, wanted, patience)
            self._tell()

    def _opened(self, opens: Iterable[SlotOpen]) -> None:
        owners = self._owners()
        for opening in opens:
            if opening.slot in self._open:
                self._close(opening.slot)
            if opening.params.constraint and opening.slot in owners:
                owner = owners[opening.slot]
                key = owner.standing.tenant, owner.params.constraint
                self._follow(owner, self._shared.setdefault(key, Spent()))

    def settle(self) -> None:
        """Wait for the masks that the newest step makes itself: before its result, which waits for
        them, and before the next plan. Meanwhile what the step before gave is on its way."""
        filling, self._filling = self._filling, None
        if filling is None:
            return
        found = filling.fills.wait(filling.seconds, self._patience)
        self._settle(filling.plan, filling.handle, zip(filling.asked, found, strict=True))
        self._tell()

    def _look_for(
        self, plan: StepPlan, handle: Handle, rows: Mapping[int, Wanted], seconds: float
    ) -> None:
        """Rows whose masks do not come before ``seconds`` are over draw nothing."""
        looks = {
            slot: self._look(slot, tuple(wanted), handle.fill) for slot, wanted in rows.items()
        }
        self._await(looks, seconds)
        for look in looks.values():
            request = look.followed.request
            if left := look.leave():
                self._leave(plan, handle, left)
                request.masked.is_late = True
            else:
                note_ends(request, look.made)

    def _settle(
        self, plan: StepPlan, handle: Handle, found: Iterable[tuple[StepMask, Filled]]
    ) -> None:
        """Book what the step's threads made; what they did not is made beside it."""
        waiting: dict[int, Wanted] = {}
        chains: dict[int, Look] = {}
        for one, (state, is_cancelled, only, seconds, cpu) in found:
            if state == WAITING:
                waiting[one.slot] = ((one.row, ()),)
                continue
            slowest = max(cpu, seconds / PATIENCE)
            self._spend(one.slot, MaskCost(1, seconds, 2, cpu, slowest))
            if state == MADE:
                one.booked()
            if is_cancelled:
                one.followed.spent.is_slow = True
                reopen(one.followed)
            if state != MADE:
                self._refused(plan, one)
            elif self._jumps and only >= 0 and not _may_ban(one.followed.params):
                chains[one.slot] = self._look(one.slot)
        if waiting:
            self._look_for(plan, handle, waiting, 0.0)
        self._await(chains, self._patience)

    def _refused(self, plan: StepPlan, one: StepMask) -> None:
        """Its row draws nothing. The library says why, or makes the mask anew where it was only too
        slow."""
        self._left.setdefault(plan.step, set()).add(one.row)
        one.followed.request.masked.is_late = True
        self._await({one.slot: self._look(one.slot)}, 0.0)

    def _leave(self, plan: StepPlan, handle: Handle, rows: set[int]) -> None:
        """``rows`` draw nothing."""
        self._left.setdefault(plan.step, set()).update(rows)
        for row in rows:
            handle.fill(row, np.zeros(self._n_words, np.uint32))

    def _look(
        self,
        slot: int,
        rows: tuple[tuple[int, Path], ...] = (),
        bring: Bring = lambda row, bits: None,
    ) -> Look:
        followed = self._open[slot]
        request = followed.request
        outputs = request.tokens[request.n_prompt + max(followed.n_outputs, 0) :]
        finds_chain = self._jumps and not _may_ban(request.params)
        look = Look(followed, outputs, self._n_words, rows, bring, finds_chain)
        followed.look = look
        return look

    def _await(self, looks: Mapping[int, Look], seconds: float) -> None:
        """The looks are taken that are done before ``seconds`` are over."""
        if looks:
            self._crew.do(tuple(looks.values()), seconds)
            for slot in looks:
                self._take(slot)

    def _take(self, slot: int) -> None:
        """What a look found, when it is done."""
        one = self._open[slot]
        look = one.look
        if look is None:
            return
        if not look.is_done:
            began = look.began
            if began and time.monotonic() - began > PATIENCE * MAX_SECONDS:
                self._failed[slot] = _too_slow()
            return
        one.look = None
        if isinstance(look.error, Exception):
            self._failed[slot] = look.error
        elif look.error is not None:
            raise look.error
        self._spend(slot, look.cost)

    def _spend(self, slot: int, cost: MaskCost) -> None:
        """What was asked for the answer there took so much."""
        spent = self._open[slot].spent
        self.n_masks += cost.n_masks
        self.seconds += cost.seconds
        if cost.slowest > MAX_SECONDS:
            self._failed.setdefault(slot, _too_slow())
        spent.seconds = max(0.0, spent.seconds + cost.cpu - cost.n_calls * CPU_SECONDS_EACH)
        if spent.seconds > CPU_SECONDS:
            self._failed[slot] = TimeoutError("its masks take too long: simplify the grammar")

    def close(self) -> None:
        for slot in tuple(self._open):
            self._close(slot)
        self._crew.close()

    def _follow(self, request: Request, spent: Spent) -> None:
        if self._masks is not None:
            key = next(self._keys)
            self._open[request.slot] = Followed(self._masks, key, request, request.params, spent)

    def _close(self, slot: int) -> None:
        self._failed.pop(slot, None)
        close(self._open.pop(slot))

    def _owners(self) -> dict[int, Request]:
        """By slot what runs there."""
        return {request.slot: request for request in self._scheduler.running}

    def _tell(self) -> None:
        """End the requests whose masks failed."""
        owners = self._owners() if self._failed else {}
        while self._failed:
            slot, error = self._failed.popitem()
            if slot in owners:
                why = f"its constraint failed: {type(error).__name__}: {error}"
                self._scheduler.fail(owners.pop(slot), KvasirError(why, code="constraint_failed"))


def _can_jump(request: Request) -> bool:
    """Whether it decodes, and a token that alone is in its mask is drawn for sure."""
    is_decoding = request.n_outputs > 0 and request.n_known - request.n_computed <= 1
    return is_decoding and not (request.drafting.is_open or _may_ban(request.params))


def _may_ban(params: TokenParams) -> bool:
    return len(params.allowed) + len(params.bad_words) > 0


def _too_slow() -> TimeoutError:
    return TimeoutError(f"a mask takes more than {MAX_SECONDS:g} s: simplify the grammar")
