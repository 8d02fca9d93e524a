"""Drafts that the target itself makes beside its answer: lookahead decoding (arXiv 2402.02057).

Guesses of the tokens that are to come are mended by Jacobi's iteration, as all of them are computed
in each step: what the target draws behind a guess is the next guess of the place after it. One
token of each of the last iterations makes an n-gram; those that begin with the newest token are
drafted. Window and n-grams are one tree: the oldest guesses are a chain behind the newest token,
and behind each of them a branch has the younger guesses of the places after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.speculate.base import Draft, Known, Proposer

EVIDENCE = 4
"""Of all that is drafted: how often it is right is learned of it as a whole, and by request."""
WARM_UP = 32
"""Iterations of a request after which it counts against drafts that they have no n-grams: the first
ones only collect them."""
MAX_KEYS = 4096
"""Tokens of a request with which n-grams begin; the oldest go."""


class Lookahead(Proposer):
    """Its n-grams are those of a request alone."""

    def __init__(self, window: int, ngram: int, n_guesses: int) -> None:
        """``window``: places W that are guessed, 1 at least. ``ngram``: tokens N of an n-gram, 2 at
        least. ``n_guesses``: n-grams G that are drafted and kept of a first token. A draft has
        (W + G) (N - 1) tokens at most."""
        self._window, self._ngram, self._n_guesses = window, ngram, n_guesses
        self._trails: dict[int, _Trail] = {}

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [self._trail(known).tree(known.tokens[-1]).head(k) for known in requests]

    def saw(
        self,
        known: Known,
        tokens: Sequence[int],
        parents: Sequence[int],
        likeliest: Sequence[Sequence[int]],
    ) -> None:
        if trail := self._trails.get(known.id):
            trail.saw(tokens, parents or range(-1, len(tokens) - 1), likeliest)

    def ended(self, known: Known) -> None:
        self._trails.pop(known.id, None)

    @property
    def n_requests(self) -> int:
        """Of which anything is kept."""
        return len(self._trails)

    def _trail(self, known: Known) -> _Trail:
        """Its first guesses are the newest tokens of the prompt: any would do."""
        if known.id not in self._trails:
            n_levels, seed = self._ngram - 1, known.tokens[-self._window * self._ngram :]
            levels = [
                [seed[(j * self._window + i) % len(seed)] for i in range(self._window)]
                for j in range(n_levels)
            ]
            self._trails[known.id] = _Trail(levels, self._n_guesses)
        return self._trails[known.id]


class _Trail:
    """Of a request the last iterations, oldest first, and the n-grams that they gave. Where drafts
    are accepted the window stays behind by their number: n-grams do not depend on places."""

    def __init__(self, levels: list[list[int]], n_guesses: int) -> None:
        self._levels = levels
        self._n_guesses = n_guesses
        self._pool: dict[int, tuple[tuple[int, ...], ...]] = {}
        """By first token what follows it in n-grams, newest first."""
        self._n_iterations = 0

    def tree(self, newest: int) -> Draft:
        """N-grams that begin with ``newest``, and the window."""
        made = _GuessTree()
        for rest in self._pool.get(newest, ()):
            made.add(-1, rest)
        at = -1
        for guess, *younger in zip(*self._levels, strict=True):
            at = made.add(at, (guess,))
            made.add(at, younger)
        return Draft(
            tuple(made.tokens),
            tuple(made.parents),
            evidence=EVIDENCE,
            is_whole=True,
            teaches=newest in self._pool or self._n_iterations >= WARM_UP,
        ).head(len(made.tokens))

    def saw(
        self, tokens: Sequence[int], parents: Sequence[int], likeliest: Sequence[Sequence[int]]
    ) -> None:
        """A step that computed the whole window is an iteration."""
        children: dict[tuple[int | None, int], int]
        children = {(parents[i], tokens[i]): i for i in range(1, len(tokens))}
        newest: list[int] = []
        at: int | None = 0
        for guess, *younger in zip(*self._levels, strict=True):
            leaf = at = children.get((at, guess))
            for token in younger:
                leaf = children.get((leaf, token))
            if leaf is None or not likeliest[leaf]:
                return
            newest.append(likeliest[leaf][0])
        self._n_iterations += 1
        self._levels.append(newest)
        for first, *rest in zip(*self._levels, strict=True):
            self._keep(first, tuple(rest))
        del self._levels[0]

    def _keep(self, first: int, rest: tuple[int, ...]) -> None:
        others = [one for one in self._pool.pop(first, ()) if one != rest]
        self._pool[first] = (rest, *others[: self._n_guesses - 1])
        if len(self._pool) > MAX_KEYS:
            del self._pool[next(iter(self._pool))]


class _GuessTree:
    """A tree of drafts in the making: what begins alike stands once."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, at: int, tokens: Sequence[int]) -> int:
        """``tokens`` behind the node ``at``; the node of the last one."""
        for token in tokens:
            if (at, token) not in self._nodes:
                self._nodes[at, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(at)
            at = self._nodes[at, token]
        return at
