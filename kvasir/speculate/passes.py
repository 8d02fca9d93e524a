"""What a draft program takes: a curve over the tokens of a pass, learned from what steps took."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.speculate.curve import KNOTS, Curve


class PassCosts:
    """Deterministic, as ``Curve`` is."""

    def __init__(self, share: float) -> None:
        """``share``: of a step of the target, that a pass of as many tokens takes, as far as
        anybody knows before one was measured."""
        self._share = share
        self._curve = Curve()
        self._is_measured = False

    def seconds(self, n_tokens: int, step: float) -> float:
        """Of a pass of ``n_tokens``; ``step``: seconds of a step of one token of the target."""
        if not n_tokens:
            return 0.0
        n_most = KNOTS[-1]
        found = self._curve.seconds(min(n_tokens, n_most)) * max(1.0, n_tokens / n_most)
        return found if self._is_measured else self._share * step * found

    def longest(self, seconds: float, step: float) -> int:
        """The most tokens, of those that are kept at knots, of a pass within ``seconds``; 1 where
        none is."""
        return max([1, *(n for n in KNOTS if self.seconds(n, step) <= seconds)])

    def observe(self, passes: Sequence[int], seconds: float) -> None:
        """Passes of so many tokens took ``seconds`` together."""
        expected = sum([self._curve.seconds(n) for n in passes])
        if not passes or seconds <= 0.0:
            return
        parts = {n: self._curve.seconds(n) * seconds / expected for n in passes}
        for n, part in parts.items():
            self._curve.observe(n, part)
        self._is_measured = True


class Chains:
    """Tokens that a draft program is asked for behind requests, one after the other, and what that
    takes: a pass in which it takes in the newest tokens, and one for each token of the longest. A
    head takes tokens in whoever asks, and gives the first one there."""

    def __init__(
        self, passes: PassCosts, step: float, n_requests: int, *, is_head: bool = False
    ) -> None:
        """``step``: seconds of a step of one token of the target."""
        self._passes, self._step, self._n_first = passes, step, 0 if is_head else 2
        self.lengths = [0] * n_requests
        self._longer: list[int] = []  # chains of more tokens than the index
        self._known = {0: 0.0}  # seconds by tokens of a pass
        self.seconds = 0.0

    def add(self, request: int) -> None:
        """One token more behind a request, by its index."""
        depth = self.lengths[request]
        if depth == len(self._longer):
            self._longer.append(0)
        n = self._longer[depth]
        more = self.pass_seconds(n + 1) - self.pass_seconds(n)
        self.seconds += more if depth else self._n_first * more
        self._longer[depth] = n + 1
        self.lengths[request] = depth + 1

    def pass_seconds(self, n_tokens: int) -> float:
        if n_tokens not in self._known:
            self._known[n_tokens] = self._passes.seconds(n_tokens, self._step)
        return self._known[n_tokens]
