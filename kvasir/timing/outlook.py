"""When requests will start and end, from the measured cost of steps and the lengths of answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heapreplace
from itertools import islice
from typing import NamedTuple

from kvasir.core.errors import KvasirError
from kvasir.timing.backlog import Backlog, sums
from kvasir.timing.cost import CostModel, Load
from kvasir.timing.timed import Timed

USUAL_OUTPUTS = 256.0
"""Tokens of an answer that may stop by itself, before any has: for the wait of others."""
LENGTH_RATE = 0.05
"""Weight of the newest answer in the mean length."""


class Wait(NamedTuple):
    """Seconds until the first of the waiting requests starts, and until one behind all of them
    would."""

    first: float = 0.0
    last: float = 0.0


class Occupancy(NamedTuple):
    """What runs, in numbers."""

    n_running: int
    n_places: int
    """Requests that can run at a time."""
    n_entries: int
    """Their tokens."""
    prompts: float
    """Seconds that are left of their prompts."""
    lefts: Sequence[tuple[int, int]]
    """Outputs that are left, ascending, and how many have so many left; 0 of free places."""


class Outlook:
    """Deterministic: a function of the cost model and of the answers that have ended."""

    def __init__(self, costs: CostModel, max_num_seqs: int) -> None:
        self._costs = costs
        self._max_num_seqs = max_num_seqs
        self._usual_outputs = USUAL_OUTPUTS
        self._has_learnt = False

    def ended(self, request: Timed) -> None:
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

    def n_left(self, request: Timed) -> int:
        """Outputs that ``request`` is expected to draw from now on."""
        n_most, n_drawn, params = request.max_outputs, request.n_drawn, request.params
        if not params.stop_ids or n_most <= n_drawn:
            return n_most - n_drawn
        n_expected = max(int(self._usual_outputs), params.min_tokens, n_drawn + 1)
        return min(n_expected, n_most) - n_drawn

    def n_due(self, request: Timed) -> int:
        """Outputs that a new ``request`` must be given time for: what answers have shown, and
        otherwise the fewest."""
        if request.params.stop_ids and not self._has_learnt:
            return min(max(request.params.min_tokens, 1), request.max_outputs)
        return self.n_left(request)

    def occupancy(self, running: Sequence[Timed], n_places: int) -> Occupancy:
        """What the wait of others depends on; holds as long as nothing is planned and nobody ends.

        ``n_places``: requests that can run at a time.
        """
        n_known = sum([x.n_prompt + x.n_drawn for x in running])
        n_computed = sum([x.n_computed for x in running])
        left, n_running = self.n_left, len(running)
        lefts = Counter(
            [left(x) if x.params.stop_ids else x.max_outputs - x.n_drawn for x in running]
        )
        prompts = 0.0
        if n_known - n_computed > n_running:
            prompts = sum(map(self.prompt_seconds, running))
        n_places = max(n_places, n_running)
        if n_places > n_running:
            lefts[0] += n_places - n_running
        return Occupancy(n_running, n_places, n_known, prompts, sorted(lefts.items()))

    def wait(
        self, occupancy: Occupancy, backlogs: Iterable[Backlog], waiting: Iterable[Timed]
    ) -> Wait:
        """Requests decode in step, one token each; prompts delay all of them. ``waiting`` begins
        with those of ``backlogs``: while they are not more than places they start in their order
        as others end; of more, the lengths even out, and all count as equally long."""
        n, prompts, n_outputs, squares = sums(backlogs, self._usual_outputs)
        step = self.step_seconds(occupancy, n + 1)
        n_first = occupancy.lefts[0][0]
        first = n_first * step + occupancy.prompts if n_first else 0.0
        if not n:
            return Wait(first, first)
        if n > occupancy.n_places:
            length = n_outputs / n
            # the place that is free next was taken by a short one: in the others, more is left
            spread = (squares / n - length * length) / (2 * length) if length else 0.0
            n_last = max(n_first, start_after(occupancy.lefts, length, n) - spread)
        else:
            n_last = start_behind(occupancy.lefts, map(self.n_left, islice(waiting, n)))
        return Wait(first, n_last * step + occupancy.prompts + self._costs.beyond(prompts))

    def prompt_seconds(self, request: Timed, n_cached: int = 0) -> float:
        """Of the tokens that must be computed before ``request`` draws, beyond ``n_cached``."""
        start = max(request.n_computed, n_cached)
        n_tokens = request.n_known - start - 1
        return self._costs.chunk_seconds(n_tokens, start) if n_tokens > 0 else 0.0

    def step_seconds(self, occupancy: Occupancy, n_more: int) -> float:
        """Of a step in which all who run decode, and as many of ``n_more`` as have places."""
        n_rows = min(occupancy.n_running + n_more, occupancy.n_places)
        n_entries = occupancy.n_entries
        if occupancy.n_running:
            n_entries = n_entries * n_rows // occupancy.n_running
        return self._costs.step_seconds(Load(n_rows, n_rows, n_entries, n_entries))


def start_behind(lefts: Sequence[tuple[int, int]], lengths: Iterable[int]) -> int:
    """Steps until a request starts that has others of ``lengths`` before it. ``lefts``: steps after
    which places become free, ascending, and how many do."""
    ends = [left for left, count in lefts for _ in range(count)]
    for length in lengths:
        heapreplace(ends, ends[0] + length)
    return ends[0]


def start_after(lefts: Sequence[tuple[int, int]], length: float, n: int) -> float:
    """``start_behind`` for ``n`` of equal ``length``, however many they are.

    In a place that becomes free one starts every ``length`` steps. Counted in whole lengths, each
    place has seen as many starts as rounds since it was free; what is left of ``n`` is less than
    one more in each of them, and those come in the order of the rests.
    """
    if not length:
        return lefts[0][0]
    n_places = n_before = 0
    rests: list[tuple[float, int]] = []
    for left, count in lefts:
        n_rounds, rest = divmod(left, length)
        if n_rounds * n_places - n_before > n:
            break
        n_places += count
        n_before += int(n_rounds) * count
        rests.append((rest, count))
    n_rounds, n_left = divmod(n + n_before, n_places)
    for rest, count in sorted(rests):
        n_left -= count
        if n_left < 0:
            return n_rounds * length + rest
    raise KvasirError(f"{n_places} places take more than {n + n_before} requests")
