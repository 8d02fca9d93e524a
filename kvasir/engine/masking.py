"""Brings the masks of constrained requests to the steps that wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from kvasir.core.errors import KvasirError
from kvasir.core.plan import Row, RowOutput, StepPlan, StepResult
from kvasir.exec.base import Handle
from kvasir.exec.masks import ConstrainedSlots
from kvasir.exec.rows import LogitRow
from kvasir.sampling.masks import Bits, Masks, allows, n_words
from kvasir.sched.request import Request
from kvasir.sched.rows import accepted, is_draft
from kvasir.sched.scheduler import Scheduler

MAX_SECONDS = 1.0
"""Of one call for one request: all others wait for it. The request of a slower one ends with it."""


class Masking:
    """Follows plans and results, which say all: the constraint of each slot, what was put out
    there, and which rows wait for a mask. A request whose masks fail, or take too long, ends."""

    def __init__(self, masks: Masks, scheduler: Scheduler, vocab_size: int) -> None:
        self._masks = masks
        self._scheduler = scheduler
        self._n_words = n_words(vocab_size)
        self._slots = ConstrainedSlots()
        self._open: set[int] = set()
        self._failed: dict[int, Exception] = {}
        """By slot, of requests that do not know it yet."""

    def drew(self, plan: StepPlan, result: StepResult) -> None:
        """``plan`` is committed."""
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
            constraint = opening.params.constraint
            if constraint and self._try(opening.slot, self._masks.open, constraint, opening.output):
                self._open.add(opening.slot)
        if not rows and not self._failed:
            return
        made: dict[tuple[int, tuple[int, ...]], Bits] = {}
        owners = self._owners()
        for i, row in rows.items():
            self._tell(owners)
            bits = made[row.slot, row.path] = np.zeros(self._n_words, np.uint32)
            # nobody draws below a token that is forbidden, or for a request that has ended
            if row.slot in owners and _is_reached(row, made):
                self._try(row.slot, self._masks.fill, row.path, bits)
            handle.fill(i, bits)
        self._tell(owners)

    def close(self) -> None:
        for slot in tuple(self._open):
            self._close(slot)

    def _close(self, slot: int) -> None:
        self._open.discard(slot)
        self._failed.pop(slot, None)
        self._masks.close(slot)

    def _try(self, slot: int, act: Callable[..., None], *args: object) -> bool:
        began = time.monotonic()
        try:
            act(slot, *args)
        except Exception as error:
            self._failed[slot] = error
            return False
        if (seconds := time.monotonic() - began) > MAX_SECONDS:
            late = TimeoutError(f"a call took {seconds:.1f} s, {MAX_SECONDS:g} s at most")
            self._failed[slot] = late
        return True

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


def _is_reached(row: LogitRow, made: dict[tuple[int, tuple[int, ...]], Bits]) -> bool:
    return not row.path or allows(made[row.slot, row.path[:-1]], row.path[-1])


def _emitted(row: Row, outputs: Sequence[RowOutput]) -> list[int]:
    """Tokens that ``row`` gave to its request."""
    if is_draft(row):
        outputs = (outputs[0], *(outputs[node] for node in accepted(row, tuple(outputs))))
    elif row.targets:
        outputs = outputs[len(row.targets) - row.targets.count(-1) :]
    return [output.token for output in outputs if output.token >= 0]
