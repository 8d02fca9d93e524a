"""Waiting requests as sums: what a newcomer has before it, without a look at each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from kvasir.timing.cost import Load, chunk_load
from kvasir.timing.timed import Timed


class Lengths:
    """Many numbers >= 0, of which sums are wanted with a limit to each. Those between two powers of
    two count as equal."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._sums: Counter[int] = Counter()

    def add(self, length: int) -> None:
        size = length.bit_length()
        self._counts[size] += 1
        self._sums[size] += length

    def remove(self, length: int) -> None:
        size = length.bit_length()
        self._counts[size] -= 1
        self._sums[size] -= length

    def total(self, limit: float = inf) -> tuple[float, float]:
        """Their sum, and that of their squares, with ``limit`` in the place of longer ones."""
        first = second = 0.0
        for size, n in sorted(self._counts.items()):
            if n:
                each = min(self._sums[size] / n, limit)
                first += n * each
                second += n * each * each
        return first, second


class Backlog:
    """Every operation takes the same time however many wait."""

    def __init__(self) -> None:
        self._shares: dict[Timed, tuple[int, int, int, int]] = {}
        self._n_tokens = 0
        self._n_pairs = 0
        self._least, self._most = Lengths(), Lengths()

    def __len__(self) -> int:
        return len(self._shares)

    def add(self, request: Timed) -> None:
        """What ``request`` adds is remembered: what is known of it may change while it waits."""
        left = least = request.max_outputs - request.n_drawn
        if request.params.stop_ids:
            least = min(left, max(1, request.params.min_tokens - request.n_drawn))
        _, n_tokens, n_pairs, _ = chunk_load(request.n_known - 1, 0)
        self._shares[request] = n_tokens, n_pairs, least, left
        self._n_tokens += n_tokens
        self._n_pairs += n_pairs
        self._least.add(least)
        self._most.add(left)

    def remove(self, request: Timed) -> None:
        n_tokens, n_pairs, least, left = self._shares.pop(request)
        self._n_tokens -= n_tokens
        self._n_pairs -= n_pairs
        self._least.remove(least)
        self._most.remove(left)

    def prompts(self) -> Load:
        """What must be computed before each of them draws, every prompt in one row."""
        return Load(len(self), self._n_tokens, self._n_pairs, self._n_tokens)

    def outputs(self, usual: float) -> tuple[float, float]:
        """That they will draw, and the sum of the squares. ``usual``: of one that may stop by
        itself, between its least and its most."""
        most, least, lower = self._most.total(usual), self._least.total(), self._least.total(usual)
        return most[0] + least[0] - lower[0], most[1] + least[1] - lower[1]


def sums(backlogs: Iterable[Backlog], usual: float) -> tuple[int, Load, float, float]:
    """Requests, prompts, outputs, and squares of outputs, of ``backlogs`` together."""
    n, load, n_outputs, squares = 0, Load(), 0.0, 0.0
    for backlog in backlogs:
        if backlog:
            n += len(backlog)
            load = load.plus(backlog.prompts())
            first, second = backlog.outputs(usual)
            n_outputs += first
            squares += second
    return n, load, n_outputs, squares
