"""When requests will start and end, from the measured cost of steps and the lengths of answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from kvasir.sched.cost import CostModel, Load
from kvasir.sched.request import Request

USUAL_OUTPUTS = 256.0
"""Tokens of an answer that may stop by itself, before any has: for the wait of others."""
LENGTH_RATE = 0.05
"""Weight of the newest answer in the mean length."""
MAX_SIMULATED = 512
"""Waiting requests that are followed one by one; the time of later ones is extrapolated."""


class Wait(NamedTuple):
    """Seconds until the first of the waiting requests starts, and until one behind all of them
    would."""

    first: float = 0.0
    last: float = 0.0


class Outlook:
    """Deterministic: a function of the cost model and of the answers that have ended."""

    def __init__(self, costs: CostModel, max_num_seqs: int) -> None:
        self._costs = costs
        self._max_num_seqs = max_num_seqs
        self._usual_outputs = USUAL_OUTPUTS
        self._has_learnt = False

    def ended(self, request: Request) -> None:
        """Learn how long answers are that may stop by themselves."""
        n, reason = request.n_outputs, request.finish
        longer = reason == "length" and n > self._usual_outputs
        if request.params.stop_ids and (reason == "stop" or longer):
            self._usual_outputs += LENGTH_RATE * (n - self._usual_outputs)
            self._has_learnt = True

    def doubt(self) -> None:
        """A request was refused for what answers were like so far, and will not show its own:
        without doubt everybody could be refused for ever."""
        self._usual_outputs *= 1 - LENGTH_RATE

    def n_left(self, request: Request) -> int:
        """Outputs that ``request`` is expected to draw from now on."""
        n_expected = request.max_outputs
        if request.params.stop_ids:
            n_expected = min(n_expected, max(int(self._usual_outputs), request.params.min_tokens))
        return max(n_expected - request.n_drawn, min(1, request.max_outputs - request.n_drawn), 0)

    def n_due(self, request: Request) -> int:
        """Outputs that a new ``request`` must be given time for: what answers have shown, and
        otherwise the fewest."""
        if request.params.stop_ids and not self._has_learnt:
            return min(max(request.params.min_tokens, 1), request.max_outputs)
        return self.n_left(request)

    def wait(self, running: Sequence[Request], waiting: Iterable[Request], n_waiting: int) -> Wait:
        """Requests decode in step, one token each; prompts delay all of them. ``waiting`` start in
        their order, as others end."""
        step = self.step_seconds(running, n_waiting + 1)
        delay = sum(map(self.prompt_seconds, running))
        n_slots = self._max_num_seqs
        if n_waiting and len(running) < n_slots and not self._is_new(running):
            n_slots = len(running) or n_slots  # blocks are short, not slots
        ends = [0.0] * (n_slots - len(running))
        ends.extend(self.n_left(request) * step for request in running)
        heapify(ends)
        first = ends[0] + delay if ends[0] else 0.0
        n_simulated = 0
        for request in islice(waiting, MAX_SIMULATED):
            end = heappop(ends)
            delay += self.prompt_seconds(request)
            heappush(ends, end + self.n_left(request) * step)
            n_simulated += 1
        last = ends[0] + delay if ends[0] or n_simulated else 0.0
        if n_simulated < n_waiting:
            last = first + (last - first) * n_waiting / n_simulated
        return Wait(first, last)

    def prompt_seconds(self, request: Request, n_cached: int = 0) -> float:
        """Of the tokens that must be computed before ``request`` draws, beyond ``n_cached``."""
        start = max(request.n_computed, n_cached)
        n_tokens = request.n_known - start - 1
        return self._costs.chunk_seconds(n_tokens, start) if n_tokens > 0 else 0.0

    def step_seconds(self, running: Sequence[Request], n_more: int) -> float:
        """Of a step in which all of ``running`` decode, and as many of ``n_more`` as have slots."""
        n_rows = min(len(running) + n_more, self._max_num_seqs)
        n_entries = sum(request.n_known for request in running)
        if running:
            n_entries = n_entries * n_rows // len(running)
        return self._costs.step_seconds(Load(n_rows, n_rows, n_entries, n_entries))

    @staticmethod
    def _is_new(running: Sequence[Request]) -> bool:
        """The last plan had prompts to compute: others may have found no room for theirs."""
        return any(not request.n_drawn for request in running)
