"""How requests of the exactness harness are drafted for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvasir.speculate.base import Proposer
from kvasir.speculate.executor import ExecutorProposer
from kvasir.speculate.lookup import Lookup
from kvasir.speculate.oracle import OracleProposer
from tests.answers import Answer


@dataclass(frozen=True, slots=True)
class Drafts:
    """How the oracle drafts: see OracleProposer."""

    k: int
    n_siblings: int = 0
    wrong_depths: frozenset[int] = frozenset()
    by_executor: bool = False
    """The executor drafts instead."""
    by_lookup: bool = False
    """What stood in texts before is drafted, as far as it pays."""

    def proposer(self, known: Mapping[int, Answer], vocab_size: int) -> Proposer:
        if self.by_executor:
            return ExecutorProposer()
        if self.by_lookup:
            return Lookup(1, 16, n_stored=4096)
        answers = {i: answer.tokens for i, answer in known.items()}
        return OracleProposer(
            answers, vocab_size, n_siblings=self.n_siblings, wrong_depths=self.wrong_depths
        )
