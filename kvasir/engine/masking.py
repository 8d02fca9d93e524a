"""Brings the masks of constrained requests to the steps that wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
from msgspec import structs

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.core.plan import Row, RowOutput, SlotOpen, StepPlan, StepResult
from kvasir.exec.base import Handle
from kvasir.exec.masks import ConstrainedSlots
from kvasir.exec.rows import LogitRow
from kvasir.grammar.thinking import closed_at
from kvasir.sampling.masks import Bits, Masks, allows, n_words
from kvasir.sched.request import Request
from kvasir.sched.rows import accepted, is_draft
from kvasir.sched.scheduler import Scheduler

MAX_SECONDS = 1.0
"""Of one call for one request: all others wait for it. The request of a slower one ends with it.
To open one is no such call: the first of all reads the vocabulary, which no request is to blame
for."""
CPU_SECONDS = 0.3
CPU_SECONDS_EACH = 0.002
"""That the masks of one constraint of a tenant may take: so much and, for each call, so much more.
There are grammars that take longer with each token; with n choices everybody would wait n times."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Spent:
    """On one constraint of a tenant."""

    seconds: float = 0.0
    """Beyond CPU_SECONDS_EACH."""


class Masking:
    """Follows plans and results, which say all: the constraint of each slot, what was put out
    there, and which rows wait for a mask. A request whose masks fail, or take too long, ends."""

    def __init__(self, masks: Masks, scheduler: Scheduler, vocab_size: int) -> None:
        self._masks = masks
        self._scheduler = scheduler
        self._n_words = n_words(vocab_size)
        self._slots = ConstrainedSlots()
        self._open: set[int] = set()
        self._spent: dict[int, _Spent] = {}
        """By slot."""
        self._shared: WeakValueDictionary[tuple[str, str], _Spent] = WeakValueDictionary()
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

    def prepare(self, request_id: int, constraint: str) -> Callable[[], bool] | None:
        """A request with it has arrived. Whether it can be queued; None: it can."""
        if not constraint:
            return None
        is_ready = self._prepared[request_id] = self._masks.prepare(constraint)
        return None if is_ready() else is_ready

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

    def drew(self, plan: StepPlan, result: StepResult) -> None:
        """``plan`` is committed."""
        self._hear(plan, result)
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
        if self._owners().get(request.slot) is request and request.slot in self._open:
            self._masks.close(request.slot)
            if not self._try(
                request.slot, self._masks.open, constraint, request.tokens[request.n_prompt :]
            ):
                self._open.discard(request.slot)

    def _hear(self, plan: StepPlan, result: StepResult) -> None:
        if not self._open:
            return
        for slot in self._open - self._owners().keys():
            self._close(slot)
        first = 0
        for row in plan.rows:
            outputs = result.outputs[first : first + row.n_logits]
            first += row.n_logits
            if row.slot in self._open and (tokens := _emitted(row, outputs)):
                self._try(row.slot, self._masks.accept, tokens)

    def fill(self, plan: StepPlan, handle: Handle) -> None:
        """What the started step waits for; the one before it ``drew``."""
        rows = self._slots.rows(plan)
        for opening in plan.opens:
            if opening.slot in self._open:
                self._close(opening.slot)
            if opening.params.constraint:
                self._begin(opening)
        if not rows and not self._failed:
            return
        made: dict[tuple[int, tuple[int, ...]], Bits] = {}
        owners = self._owners()
        for i, row in rows.items():
            self._tell(owners)
            bits = made[row.slot, row.path] = np.zeros(self._n_words, np.uint32)
            # nobody draws below a token that is forbidden, or for a request that has ended
            if row.slot in owners and _is_reached(row, made):
                began = time.monotonic()
                self._try(row.slot, self._masks.fill, row.path, bits)
                self.seconds += time.monotonic() - began
                self.n_masks += 1
                _note_end(owners[row.slot], row.path, bits)
            handle.fill(i, bits)
        self._tell(owners)

    def close(self) -> None:
        for slot in tuple(self._open):
            self._close(slot)

    def _begin(self, opening: SlotOpen) -> None:
        slot, owner = opening.slot, self._owners().get(opening.slot)
        constraint = (opening if owner is None else owner).params.constraint
        if self._try(slot, self._masks.open, constraint, opening.output):
            self._open.add(slot)
            tenant = "" if owner is None else owner.standing.tenant
            self._spent[slot] = self._shared.setdefault((tenant, constraint), _Spent())

    def _close(self, slot: int) -> None:
        self._open.discard(slot)
        self._failed.pop(slot, None)
        self._spent.pop(slot, None)
        self._masks.close(slot)

    def _try(self, slot: int, act: Callable[..., None], *args: object) -> bool:
        began, cpu = time.monotonic(), time.thread_time()
        try:
            act(slot, *args)
        except Exception as error:
            self._failed[slot] = error
            return False
        seconds = time.monotonic() - began
        if seconds > MAX_SECONDS and act != self._masks.open:
            late = TimeoutError(f"a call took {seconds:.1f} s, {MAX_SECONDS:g} s at most")
            self._failed[slot] = late
        if act != self._masks.open:
            self._charge(slot, time.thread_time() - cpu)
        return True

    def _charge(self, slot: int, seconds: float) -> None:
        """The request ends when its constraint has cost others too much."""
        spent = self._spent[slot]
        spent.seconds = max(0.0, spent.seconds + seconds - CPU_SECONDS_EACH)
        if spent.seconds > CPU_SECONDS:
            self._failed[slot] = TimeoutError("its masks take too long: simplify the grammar")

    def _owners(self) -> dict[int, Request]:
        """By slot what runs there."""
        return {request.slot: request for request in self._scheduler.running}

    def _tell(self, owners: dict[int, Request]) -> None:
        """End the requests whose masks failed."""
        while self._failed:
            slot, error = self._failed.popitem()
            if slot in owners:
                why = f"its constraint failed: {type(error).__name__}: {error}"
                self._scheduler.fail(owners.pop(slot), KvasirError(why, code="constraint_failed"))


def _note_end(request: Request, path: tuple[int, ...], bits: Bits) -> None:
    """Whether its answer may end behind ``path``. The empty path comes first."""
    n, paths = request.n_outputs, request.ends[1] if path else frozenset[tuple[int, ...]]()
    if any(allows(bits, token) for token in request.params.stop_ids):
        paths |= {path}
    request.ends = n, paths


def _is_reached(row: LogitRow, made: dict[tuple[int, tuple[int, ...]], Bits]) -> bool:
    return not row.path or allows(made[row.slot, row.path[:-1]], row.path[-1])


def _emitted(row: Row, outputs: Sequence[RowOutput]) -> list[int]:
    """Tokens that ``row`` gave to its request."""
    if is_draft(row):
        outputs = (outputs[0], *(outputs[node] for node in accepted(row, tuple(outputs))))
    elif row.targets:
        outputs = outputs[len(row.targets) - row.targets.count(-1) :]
    return [output.token for output in outputs if output.token >= 0]
