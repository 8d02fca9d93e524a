"""Several drafters: each proposes, and for each request and step one is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from kvasir.speculate.base import Draft, Known, Proposer


class DrafterPart(NamedTuple):
    proposer: Proposer
    n_tokens: int
    """Of a draft, at most."""


class SeveralDrafters(Proposer):
    def __init__(self, *parts: DrafterPart) -> None:
        """The one that the executor drafts for comes first: it is asked where no other has
        anything."""
        self._parts = parts

    @property
    def n_tokens(self) -> tuple[int, ...]:
        """Of a draft of each, at most."""
        return tuple([part.n_tokens for part in self._parts])

    def propose_each(self, requests: Sequence[Known], k: int) -> list[list[Draft]]:
        """For each request a draft of each."""
        found = [part.proposer.propose(requests, min(k, part.n_tokens)) for part in self._parts]
        return [
            [replace(draft, drafter=drafter) for drafter, draft in enumerate(own)]
            for own in zip(*found, strict=True)
        ]

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        """The longest, where nobody knows more."""
        each = self.propose_each(requests, k)
        return [max(own, key=lambda draft: len(draft.tokens)) for own in each]

    def saw(
        self,
        known: Known,
        tokens: Sequence[int],
        parents: Sequence[int],
        likeliest: Sequence[Sequence[int]],
    ) -> None:
        for part in self._parts:
            part.proposer.saw(known, tokens, parents, likeliest)

    def ended(self, known: Known) -> None:
        for part in self._parts:
            part.proposer.ended(known)
