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
from kvasir.core.plan import SlotOpen, StepPlan
from kvasir.exec.base import Handle
from kvasir.exec.masks import ConstrainedSlots
from kvasir.exec.rows import LogitRow
from kvasir.grammar.thinking import closed_at
from kvasir.sampling.masks import Bits, Masks, allows, n_words
from kvasir.sched.request import Request
from kvasir.sched.scheduler import Scheduler

MAX_FORCED = 32
"""Tokens of one request that one look finds: each asks for a mask."""
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


@dataclass(slots=True, eq=False)
class _Followed:
    """What the masks know of an open slot."""

    n_outputs: int
    """Of its request, that they have accepted."""
    spent: _Spent
    bits: Bits | None = None
    """What may follow these, once that was asked."""


class Masking:
    """Follows plans and results, which say all: the constraint of each slot, what was put out
    there, and which rows wait for a mask. A request whose masks fail, or take too long, ends."""

    def __init__(self, masks: Masks, scheduler: Scheduler, vocab_size: int, *, jumps: bool) -> None:
        """``jumps``: what is forced has no steps of its own."""
        self._masks = masks
        self._scheduler = scheduler
        self._n_words = n_words(vocab_size)
        self._slots = ConstrainedSlots()
        self._jumps = jumps
        self._open: dict[int, _Followed] = {}
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

    def drew(self) -> None:
        """A plan is committed."""
        if self._open:
            for slot in self._open.keys() - self._owners().keys():
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
        followed = self._open.get(request.slot)
        if self._owners().get(request.slot) is not request or followed is None:
            return
        self._masks.close(request.slot)
        outputs = request.tokens[request.n_prompt :]
        followed.n_outputs, followed.bits = len(outputs), None
        if not self._try(request.slot, self._masks.open, constraint, outputs):
            del self._open[request.slot]

    def jump(self) -> None:
        """What is forced of the answers so far is told. Every plan that is under way has its
        masks."""
        if not (self._jumps and self._open):
            return
        owners = self._owners()
        for slot in self._open.keys() & owners.keys():
            request = owners[slot]
            if can_jump(request) and (chain := self._forced(slot, request)):
                self._scheduler.jump(request, chain)
        self._tell(self._owners())

    def _forced(self, slot: int, request: Request) -> list[int]:
        """The tokens that must follow its outputs, as far as one look goes."""
        chain: list[int] = []
        bits = self._next(slot, request)
        while bits is not None and (token := only(bits)) >= 0 and len(chain) < MAX_FORCED:
            if token in request.params.stop_ids:
                n_outputs = request.n_outputs + len(chain)
                return chain if n_outputs < request.params.min_tokens else [*chain, token]
            chain.append(token)
            bits = self._ask(slot, chain)
        return chain

    def _next(self, slot: int, request: Request) -> Bits | None:
        """What may follow the outputs of ``request``; None where that cannot be told."""
        followed = self._open[slot]
        if new := request.tokens[request.n_prompt + followed.n_outputs :]:
            followed.n_outputs, followed.bits = followed.n_outputs + len(new), None
            if not self._try(slot, self._masks.accept, new):
                return None
        if followed.bits is None:
            followed.bits = self._ask(slot, ())
        return followed.bits

    def _ask(self, slot: int, path: Sequence[int]) -> Bits | None:
        bits = np.zeros(self._n_words, np.uint32)
        began = time.monotonic()
        is_made = self._try(slot, self._masks.fill, path, bits)
        self.seconds += time.monotonic() - began
        self.n_masks += 1
        return bits if is_made else None

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
        nothing = np.zeros(self._n_words, np.uint32)
        for i, row in rows.items():
            self._tell(owners)
            bits: Bits | None = None
            # nobody draws below a token that is forbidden, or for a request that has ended
            if row.slot in owners and row.slot in self._open and _is_reached(row, made):
                request = owners[row.slot]
                ahead = self._next(row.slot, request)
                bits = self._ask(row.slot, row.path) if row.path else ahead
            if bits is not None:
                _note_end(request, row.path, bits)
            made[row.slot, row.path] = nothing if bits is None else bits
            handle.fill(i, made[row.slot, row.path])
        self._tell(owners)

    def close(self) -> None:
        for slot in tuple(self._open):
            self._close(slot)

    def _begin(self, opening: SlotOpen) -> None:
        slot, owner = opening.slot, self._owners().get(opening.slot)
        constraint = (opening if owner is None else owner).params.constraint
        if self._try(slot, self._masks.open, constraint, opening.output):
            tenant = "" if owner is None else owner.standing.tenant
            spent = self._shared.setdefault((tenant, constraint), _Spent())
            self._open[slot] = _Followed(len(opening.output), spent)

    def _close(self, slot: int) -> None:
        self._open.pop(slot, None)
        self._failed.pop(slot, None)
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
        spent = self._open[slot].spent
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


def can_jump(request: Request) -> bool:
    """Whether it decodes, and a token that alone is in its mask is drawn for sure."""
    params = request.params
    is_decoding = request.n_outputs > 0 and request.n_known - request.n_computed <= 1
    return is_decoding and not (request.is_drafting or params.allowed or params.bad_words)


def only(bits: Bits) -> int:
    """The one token that is allowed; -1 where none is, or several."""
    words = np.flatnonzero(bits)
    if len(words) != 1:
        return -1
    word = int(bits[words[0]])
    return -1 if word & (word - 1) else 32 * int(words[0]) + word.bit_length() - 1


def _note_end(request: Request, path: tuple[int, ...], bits: Bits) -> None:
    """Whether its answer may end behind ``path``. The empty path comes first."""
    n, paths = request.n_outputs, request.ends[1] if path else frozenset[tuple[int, ...]]()
    if any(allows(bits, token) for token in request.params.stop_ids):
        paths |= {path}
    request.ends = n, paths


def _is_reached(row: LogitRow, made: dict[tuple[int, tuple[int, ...]], Bits]) -> bool:
    return not row.path or allows(made[row.slot, row.path[:-1]], row.path[-1])
