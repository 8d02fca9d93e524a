"""Proposes what the executor drafts itself, with a draft program beside the target's."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvasir.core.plan import sibling
from kvasir.speculate.base import Draft, Known, Proposer

EVIDENCE = 4
"""Of all that a draft model drafts: how often it is right is learned of it as a whole, and by
request."""


class ExecutorProposer(Proposer):
    """Each step verifies what the one before drafted and asks for as much again."""

    def __init__(
        self,
        max_tokens: int = sys.maxsize,
        evidence: int = 0,
        n_kept: int = 0,
        width: int = 1,
    ) -> None:
        """``max_tokens``: of a request, behind which nothing is drafted. ``n_kept``: drafted tokens
        whose distributions the executor keeps. ``width``: tokens that it drafts in each place."""
        self._width = width
        self._max_tokens = max_tokens
        self._evidence = evidence
        self._n_kept = n_kept

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [self._draft(known, k) for known in requests]

    def _draft(self, known: Known, k: int) -> Draft:
        tokens = tuple(known.drafted[:k])
        # one may still be drawn, and one is drawn behind all that are right
        room = self._max_tokens - len(known.tokens) - len(tokens) - 2
        n_asked, n_sampled = max(0, min(k, room)), min(self._n_kept, len(tokens))
        draft = Draft(tokens, n_asked=n_asked, evidence=self._evidence, n_sampled=n_sampled)
        return draft if self._width == 1 or not tokens else self._tree(known, draft)

    def _tree(self, known: Known, trunk: Draft) -> Draft:
        """The chain ``trunk`` with the next best in each of its places beside it."""
        tokens: list[int] = []
        parents: list[int] = []
        above = -1
        for place, token in enumerate(trunk.tokens):
            others = [sibling(token, rank) for rank in range(1, self._width)]
            if token >= 0:
                others = [own[place] for own in known.siblings if own[place] >= 0]
            first = len(tokens)
            tokens += [token, *others]
            parents += [above] * (1 + len(others))
            above = first
        n_asked, evidence = trunk.n_asked, trunk.evidence
        return Draft(tuple(tokens), tuple(parents), n_asked, evidence)
