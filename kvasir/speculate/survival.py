"""How likely the target draws what was drafted, learned from what it drew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from kvasir.speculate.base import Draft

N_CLASSES = 8
"""Of evidence: 1, 2 to 3, 4 to 7, and so on."""
PRIOR = (0.3, 0.45, 0.6, 0.75, 0.85, 0.9, 0.95, 0.95)
"""That a drafted token is drawn, by class, before anything is known."""
SIBLING_PRIOR = 0.3
"""The same of the second best of a place, where the best is not drawn; of the third half of it, of
the fourth a third."""
MAX_RANK = 8
"""Of siblings that are told apart."""
PRIOR_WEIGHT = 8.0
"""Tokens that this counts as."""
SHARED_DECAY = 0.995
"""Of what all requests have shown of a class, with each draft: 140 drafts later it counts half."""
OWN_DECAY = 0.92
"""The same of one request: one that turns bad is known as such after twenty."""
OWN_MOST = 8.0
"""Tokens that what one has shown counts as at most, however long it went well."""
OWN_PRIOR_WEIGHT = 0.6
"""Tokens that what all have shown counts as, beside what one has."""
IDLE_DECAY = 0.998
"""Of what is known of a request and its class, each time that no draft pays: now and then one is
tried again, in every thirtieth step or so."""


@dataclass(slots=True)
class Trials:
    """Drafted tokens whose parents were drawn, and how many of them were drawn themselves."""

    n: float = 0.0
    n_drawn: float = 0.0

    def add(self, n: int, n_drawn: int, decay: float, n_most: float = inf) -> None:
        """``n_most``: that all of them count as."""
        n_all = decay * self.n + n
        part = min(1.0, n_most / n_all) if n_all else 1.0
        self.n, self.n_drawn = part * n_all, part * (decay * self.n_drawn + n_drawn)

    def share(self, prior: float, weight: float) -> float:
        return (self.n_drawn + weight * prior) / (self.n + weight)


class Survival:
    """Each first child is drawn with a probability of the draft's class and of its request, if what
    it follows was; the next best child, if none of the better ones was, with one of its rank. Of
    each drafter apart."""

    def __init__(self) -> None:
        self._shared: dict[int, list[Trials]] = {}
        self._own: dict[int, dict[int, Trials]] = {}
        """By request, and drafter."""
        self._siblings: dict[int, list[Trials]] = {}
        """By drafter, and rank: those of ranks from 1 on."""

    def of(self, request_id: int, evidence: int, drafter: int = 0) -> float:
        """Of each token of a draft, given those before it."""
        i = _class(evidence)
        shared = self._classes(drafter)[i].share(PRIOR[i], PRIOR_WEIGHT)
        own = self._own.get(request_id, {}).get(drafter)
        return shared if own is None else own.share(shared, OWN_PRIOR_WEIGHT)

    def nodes(self, request_id: int, draft: Draft) -> list[float]:
        """Per token of ``draft`` the probability that it is drawn, and all before it: no child's is
        above its parent's, no sibling's above that of one before it."""
        each = self.of(request_id, draft.evidence, draft.drafter)
        if not draft.parents:
            return [each ** (j + 1) for j in range(len(draft.tokens))]
        found: list[float] = []
        left: dict[int, float] = {}  # by parent, that none of the children so far is drawn
        last: dict[int, float] = {}
        for parent, rank in zip(draft.parents, draft.ranks, strict=True):
            above = 1.0 if parent < 0 else found[parent]
            share = self._sibling(draft.drafter, rank) if rank else each
            none = left.get(parent, above)
            last[parent] = min(last.get(parent, above), none * share)
            left[parent] = none * (1 - share)
            found.append(last[parent])
        return found

    def drew(
        self, request_id: int, evidence: int, n_drafted: int, n_drawn: int, drafter: int = 0
    ) -> None:
        """Of a chain of ``n_drafted`` tokens the target drew the first ``n_drawn``."""
        self._learn(request_id, evidence, drafter, min(n_drafted, n_drawn + 1), n_drawn)

    def _learn(self, request_id: int, evidence: int, drafter: int, n: int, n_drawn: int) -> None:
        """Of ``n`` first children of what was drawn ``n_drawn`` were drawn."""
        self._classes(drafter)[_class(evidence)].add(n, n_drawn, SHARED_DECAY)
        own = self._own.setdefault(request_id, {}).setdefault(drafter, Trials())
        own.add(n, n_drawn, OWN_DECAY, OWN_MOST)

    def drew_tree(self, request_id: int, draft: Draft, path: Sequence[int]) -> None:
        """Of a tree the target drew the tokens of ``path``, from the root on."""
        ranks, reached = draft.ranks, {-1, *path}
        drawn = {draft.parents[node]: ranks[node] for node in path}
        n_first = 0
        for parent, rank in zip(draft.parents, ranks, strict=True):
            best = drawn.get(parent, len(ranks))
            if parent not in reached or rank > best:
                continue
            if rank:
                self._trials(draft.drafter, rank).add(1, int(rank == best), SHARED_DECAY)
            else:
                n_first += 1
        n_drawn = sum([not rank for rank in drawn.values()])
        self._learn(request_id, draft.evidence, draft.drafter, n_first, n_drawn)

    def passed(self, request_id: int, evidence: int, drafter: int = 0) -> None:
        """A draft was not worth its time."""
        self._classes(drafter)[_class(evidence)].add(0, 0, IDLE_DECAY)
        if own := self._own.get(request_id, {}).get(drafter):
            own.add(0, 0, IDLE_DECAY)

    def ended(self, request_id: int) -> None:
        self._own.pop(request_id, None)

    def _sibling(self, drafter: int, rank: int) -> float:
        return self._trials(drafter, rank).share(SIBLING_PRIOR / rank, PRIOR_WEIGHT)

    def _trials(self, drafter: int, rank: int) -> Trials:
        """Of siblings of a rank; all beyond the last one are one."""
        if drafter not in self._siblings:
            self._siblings[drafter] = [Trials() for _ in range(MAX_RANK)]
        return self._siblings[drafter][min(rank, MAX_RANK) - 1]

    def _classes(self, drafter: int) -> list[Trials]:
        if drafter not in self._shared:
            self._shared[drafter] = [Trials() for _ in range(N_CLASSES)]
        return self._shared[drafter]


def _class(evidence: int) -> int:
    return min(evidence.bit_length(), N_CLASSES) - 1
