"""What a step costs in seconds: a prior, corrected by the time that each step took.

The model is a sum of terms, each a positive constant times a number of the step, so that a step
never costs less than a part of it. The logarithms of the constants are followed by an extended
Kalman filter (Kalman: A new approach to linear filtering and prediction problems) whose state
drifts slowly: what was measured fades, and what no step has shown since keeps its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, inf, log, sqrt
from typing import NamedTuple

from kvasir.timing.towers import TowerCosts

PRIOR_VARIANCE = 2.0
"""Of the logarithm of a constant before the first step: a factor of four is no surprise."""
DRIFT = 1e-4
"""By which that variance grows with each step."""
NOISE = 0.01
"""Variance of the logarithm of a step's time when the constants are right: 10 %."""
MAX_DEVIATIONS = 3.0
"""Errors beyond are cut to this many standard deviations, and are a surprise."""
SURPRISE = 0.02
"""By which the variance grows with a surprise: one is an accident, many are a new machine."""
BOUNDS = (1e-13, 1e3)
"""Seconds that every constant stays within."""


SCORE_SECONDS = 4e-6
"""Of a logprob, alternatives included, to gather and tell it: 4,096 take 15 ms."""


class Load(NamedTuple):
    """A step, or a part of one, in numbers."""

    rows: int = 0
    tokens: int = 0
    pairs: int = 0
    """Of a query and a key that it attends to."""
    entries: int = 0
    """KV entries read: each once for all tokens of a row."""

    def plus(self, other: Load) -> Load:
        return Load(
            self.rows + other.rows,
            self.tokens + other.tokens,
            self.pairs + other.pairs,
            self.entries + other.entries,
        )


class Costs(NamedTuple):
    """Seconds of a step without rows, and of each row, token, pair and entry beyond."""

    step: float
    row: float
    token: float
    pair: float
    entry: float


NEUTRAL = Costs(2e-3, 5e-5, 5e-4, 1e-7, 1e-7)
"""Of a small model on a small machine: only their proportions matter before the first step."""


N_COSTS = len(Costs._fields)
_EACH = range(N_COSTS)


def chunk_load(n_tokens: int, start: int) -> Load:
    """One row of ``n_tokens`` tokens after ``start`` others."""
    pairs = n_tokens * start + n_tokens * (n_tokens + 1) // 2
    return Load(1, n_tokens, pairs, start + n_tokens)


class CostModel:
    """Deterministic: equal observations in equal order give equal answers."""

    def __init__(self, prior: Costs = NEUTRAL, towers: TowerCosts | None = None) -> None:
        """``towers``: of a model that sees."""
        self.costs = _bounded(prior)
        self.towers = towers
        self._variance = [[PRIOR_VARIANCE * (i == j) for j in range(N_COSTS)] for i in _EACH]

    def step_seconds(self, load: Load) -> float:
        """Seconds of a step of ``load``."""
        return self.costs.step + self.beyond(load)

    def chunk_seconds(self, n_tokens: int, start: int) -> float:
        """Seconds that a row of ``n_tokens`` tokens after ``start`` others adds to a step."""
        return self.seconds(*chunk_load(n_tokens, start))

    def score_seconds(self, n_logprobs: int) -> float:
        """Seconds that a token of a prompt takes beyond its own when it is scored, with so many
        alternatives: a row of logits, and to tell them."""
        return self.costs.row + SCORE_SECONDS * (1 + n_logprobs)

    def fit(self, load: Load, start: int, n_most: int, seconds: float) -> int:
        """The longest chunk after ``start`` tokens, at most ``n_most``, that a step of ``load`` can
        take on within ``seconds``; 0 when it has no room for one token."""
        return self.longest(start, n_most, seconds - self.step_seconds(load))

    def longest(self, start: int, n_most: int, seconds: float) -> int:
        """The longest chunk after ``start`` tokens, at most ``n_most``, that adds no more than
        ``seconds`` to a step."""
        if n_most <= 0 or self.chunk_seconds(n_most, start) <= seconds:
            return max(n_most, 0)  # mostly
        low, high = 0, n_most - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.chunk_seconds(middle, start) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low

    def observe(self, load: Load, seconds: float) -> None:
        """A step of ``load`` took ``seconds``; zero says that nobody measured."""
        if not 0.0 < seconds < inf:
            return
        terms = self._terms(load)
        expected = sum(terms)
        shares = [term / expected for term in terms]
        spread = [_dot(row, shares) for row in self._variance]
        variance = _dot(spread, shares) + NOISE
        error, limit = log(seconds) - log(expected), MAX_DEVIATIONS * sqrt(variance)
        is_surprise = abs(error) > limit
        error = min(max(error, -limit), limit)
        gains = [exp(error * part / variance) for part in spread]
        self.costs = _bounded(cost * gain for cost, gain in zip(self.costs, gains, strict=True))
        if not is_surprise:
            self._learn(spread, variance)
        self._drift(SURPRISE if is_surprise else DRIFT)

    def _learn(self, spread: Sequence[float], variance: float) -> None:
        """The constants that the observation spoke of are known better."""
        for part, row in zip(spread, self._variance, strict=True):
            row[:] = [x - part * y / variance for x, y in zip(row, spread, strict=True)]

    def _drift(self, amount: float) -> None:
        for i, row in enumerate(self._variance):
            known = row[i]
            row[i] = max(known, min(known + amount, PRIOR_VARIANCE))

    def beyond(self, load: Load) -> float:
        """Seconds that ``load`` adds to a step."""
        return self.seconds(*load)

    def seconds(self, rows: int, tokens: int, pairs: int, entries: int) -> float:
        """``beyond`` of the load with these numbers."""
        _, row, token, pair, entry = self.costs
        return row * rows + token * tokens + pair * pairs + entry * entries

    def _terms(self, load: Load) -> tuple[float, ...]:
        step, row, token, pair, entry = self.costs
        rows, tokens, pairs, entries = load
        return step, row * rows, token * tokens, pair * pairs, entry * entries


def _bounded(costs: Iterable[float]) -> Costs:
    low, high = BOUNDS
    return Costs(*[min(max(cost, low), high) for cost in costs])


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum([x * y for x, y in zip(a, b, strict=True)])
