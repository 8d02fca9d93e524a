"""Proposes what the executor drafts itself, with a draft program beside the target's."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.speculate.base import Draft, Known, Proposer


class ExecutorProposer(Proposer):
    """Each step verifies what the one before drafted and asks for as much again."""

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [Draft(tuple(known.drafted[:k]), n_asked=k) for known in requests]
