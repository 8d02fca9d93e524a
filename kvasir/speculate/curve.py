"""What steps that only decode cost by their tokens: a curve, for a line cannot say it.

A few tokens share the reading of the weights and cost little more than one; more are bound by the
arithmetic.
"""

from __future__ import annotations

from bisect import bisect_right
from math import exp, log

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Tokens of a step at which its time is kept; between them it is a line."""
SLOPE = 0.07
"""Of the time of a step of one token, that each more adds before it is measured: 0.05 to 0.09 on
Zen 5, by format."""
RATE = 0.1
"""Of an observation, in what is known of the knots beside it, once they were observed often."""


class Curve:
    def __init__(self) -> None:
        self._logs = [log(1 + SLOPE * (knot - 1)) for knot in KNOTS]
        self._n_seen = [0] * len(KNOTS)

    def seconds(self, n_tokens: int) -> float:
        """Of a step of ``n_tokens``, contexts aside; before anything was observed, in times of a
        step of one."""
        i, part = _between(n_tokens)
        return exp(self._logs[i]) * (1 - part) + exp(self._logs[i + 1]) * part

    def observe(self, n_tokens: int, seconds: float) -> None:
        """A step of ``n_tokens`` took ``seconds``."""
        error = log(seconds) - log(self.seconds(n_tokens))
        i, part = _between(n_tokens)
        for at, weight in ((i, 1 - part), (i + 1, part)):
            if weight > 0:
                self._move(at, weight * error)

    def _move(self, at: int, error: float) -> None:
        """The knot, and those that nobody has observed and to which it is the nearest observed."""
        error *= max(RATE, 1 / (1 + self._n_seen[at]))
        self._n_seen[at] += 1
        for i, n_seen in enumerate(self._n_seen):
            if i == at or (not n_seen and self._nearest(i) == at):
                self._logs[i] += error

    def _nearest(self, at: int) -> int:
        """Of the observed knots; the lower of two."""
        seen = [i for i, n in enumerate(self._n_seen) if n]
        return min(seen, key=lambda i: abs(i - at), default=at)


def _between(n_tokens: int) -> tuple[int, float]:
    """The knot before ``n_tokens``, and how far they are from it to the next, as a share."""
    i = min(bisect_right(KNOTS, n_tokens) - 1, len(KNOTS) - 2)
    low, high = KNOTS[i], KNOTS[i + 1]
    return i, min(1.0, (n_tokens - low) / (high - low))
