"""How requests of the exactness harness are drafted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvasir.config.speculation import LOOKAHEAD, N_CANDIDATES, RECYCLING
from kvasir.speculate.base import Draft, Known, Proposer
from kvasir.speculate.executor import ExecutorProposer
from kvasir.speculate.lookahead import Lookahead
from kvasir.speculate.lookup import Lookup
from kvasir.speculate.recycling import Recycling
from tests.answers import Answer
from tests.oracle_drafts import OracleProposer


class Moody(ExecutorProposer):
    """Asks for nothing behind some outputs of each request: the draft program lags behind."""

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        drafts = super().propose(requests, k)
        return [
            replace(draft, n_asked=0) if _is_off(known) else draft
            for known, draft in zip(requests, drafts, strict=True)
        ]


def _is_off(known: Known) -> bool:
    return (len(known.tokens) - known.n_prompt) // 6 % 3 == 1


@dataclass(frozen=True, slots=True)
class Drafts:
    """How the oracle drafts: see OracleProposer."""

    k: int
    n_siblings: int = 0
    wrong_depths: frozenset[int] = frozenset()
    by_executor: bool = False
    """The executor drafts instead."""
    is_lazy: bool = False
    """Its draft program takes in what it needs when it is asked, which is now and then."""
    rests: bool = False
    """It is a head, which takes nothing in while nobody asks."""
    width: int = 1
    """Tokens that the executor drafts in each place."""
    by: str = ""
    """A method: what the target found likely before is drafted, as far as it pays."""
    by_lookup: bool = False
    """What stood in texts before is drafted, as far as it pays."""

    @property
    def config(self) -> dict[str, Any]:
        """Fields of a ``SchedulerConfig`` and its sizes."""
        return {
            "max_draft_tokens": self.k,
            "lazy_drafts": self.is_lazy,
            "head_may_rest": self.rests,
            "draft_width": self.width,
            "n_candidates": N_CANDIDATES.get(self.by, 0),
        }

    def proposer(self, known: Mapping[int, Answer], vocab_size: int) -> Proposer:
        if self.is_lazy or self.rests:
            return Moody(width=self.width)
        if self.by_executor:
            return ExecutorProposer(width=self.width)
        if self.by == RECYCLING:
            return Recycling(4096)
        if self.by == LOOKAHEAD:
            return Lookahead(2, 3, 2)
        if self.by_lookup:
            return Lookup(1, 16, n_stored=4096)
        answers = {i: answer.tokens for i, answer in known.items()}
        return OracleProposer(
            answers, vocab_size, n_siblings=self.n_siblings, wrong_depths=self.wrong_depths
        )
