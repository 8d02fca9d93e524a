"""Drafts from what the target thought of tokens before: token recycling (arXiv 2408.08696).

A table has for each token the likeliest ones that followed it in the target's own logits, when it
was computed last. A tree of drafts follows the table from the newest token on. Nothing is computed
for it but the likeliest few of logit rows that are there anyway.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from kvasir.core.request import Context
from kvasir.speculate.base import Draft, Known, Proposer

EVIDENCE = 2
"""Of all that is drafted: how often it is right is learned of it as a whole, and by request."""
SHARES = (0.5, 0.16, 0.08, 0.05, 0.03, 0.02, 0.015, 0.01)
"""That the candidate of a rank is drawn, by which trees are grown before the controller, which
knows better, takes the best of them."""
GROWN = 3
"""Times as many tokens as can be computed are proposed to it."""
N_OVERHEAD = 16
"""Tokens that a table counts as beside its own: a client may have any number of contexts."""


class _Next(NamedTuple):
    """That a tree may have next: the one of the least cost."""

    cost: float
    """Minus the probability that it is drawn."""
    order: int
    """Of equally likely ones; no two are equal."""
    parent: int
    siblings: Sequence[int]
    rank: int


class CandidateTables:
    """Of each context two tables, one that grows and the one before it. When the first has half of
    what all contexts may have, the second goes; when these have more together, the context goes of
    which a token was computed longest ago."""

    def __init__(self, n_most: int) -> None:
        """``n_most``: tokens in all, of about 200 bytes each."""
        self.n_tokens = 0
        self._n_part = max(1, n_most // 2 - N_OVERHEAD)
        self._n_most = max(n_most, 2 * (1 + N_OVERHEAD))
        self._tables: OrderedDict[Context, list[dict[int, array[int]]]] = OrderedDict()

    def put(self, context: Context, token: int, candidates: Sequence[int]) -> None:
        """``candidates``: likeliest first."""
        tables = self._tables.get(context)
        if tables is None:
            tables = self._tables[context] = [{}]
            self.n_tokens += N_OVERHEAD
        self._tables.move_to_end(context)
        if token not in tables[0]:
            if len(tables[0]) >= self._n_part:
                self._forget(tables[1:])
                tables[:] = [{}, tables[0]]
                self.n_tokens += N_OVERHEAD
            self.n_tokens += 1
        tables[0][token] = array("i", candidates)
        while self.n_tokens > self._n_most and len(self._tables) > 1:
            self._forget(self._tables.popitem(last=False)[1])

    def get(self, context: Context, token: int) -> Sequence[int]:
        for table in self._tables.get(context, ()):
            if (found := table.get(token)) is not None:
                return found
        return ()

    def _forget(self, tables: Sequence[dict[int, array[int]]]) -> None:
        self.n_tokens -= sum(len(table) + N_OVERHEAD for table in tables)


class Recycling(Proposer):
    def __init__(self, n_most: int) -> None:
        """``n_most``: tokens whose candidates are kept."""
        self._tables = CandidateTables(n_most)

    @property
    def n_tokens(self) -> int:
        """Whose candidates are kept, in the tables of all contexts."""
        return self._tables.n_tokens

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [self._tree(known, GROWN * k) for known in requests]

    def saw(
        self,
        known: Known,
        tokens: Sequence[int],
        parents: Sequence[int],
        likeliest: Sequence[Sequence[int]],
    ) -> None:
        for token, candidates in zip(tokens, likeliest, strict=True):
            if candidates:
                self._tables.put(known.context, token, candidates)

    def _tree(self, known: Known, n: int) -> Draft:
        """The ``n`` tokens that are likeliest by ``SHARES``."""
        tokens: list[int] = []
        parents: list[int] = []
        edge: list[_Next] = []
        self._reach(edge, known, 1.0, known.tokens[-1], -1)
        while edge and len(tokens) < n:
            one = heappop(edge)
            node, token, next_rank = len(tokens), one.siblings[one.rank], one.rank + 1
            tokens.append(token)
            parents.append(one.parent)
            if next_rank < min(len(one.siblings), len(SHARES)):
                cost = one.cost * SHARES[next_rank] / SHARES[one.rank]
                heappush(edge, _Next(cost, 2 * node, one.parent, one.siblings, next_rank))
            self._reach(edge, known, -one.cost, token, node)
        draft = Draft(tuple(tokens), tuple(parents), evidence=EVIDENCE if tokens else 0)
        return draft.head(len(tokens))

    def _reach(self, edge: list[_Next], known: Known, share: float, token: int, node: int) -> None:
        """The first child of a node, a ``token`` that is drawn with a probability of ``share``."""
        if found := self._tables.get(known.context, token):
            heappush(edge, _Next(-share * SHARES[0], 2 * node + 1, node, found, 0))
