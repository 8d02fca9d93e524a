"""A proposer that knows the answers: shows that speculation changes steps, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvasir.speculate.base import Draft, Known, Proposer


class OracleProposer(Proposer):
    """Proposes the right tokens, with mistakes at chosen places.

    ``answers``: request id to its whole output. ``wrong_depths``: depths (1 is the first drafted
    token) at which a wrong token stands instead of the right one. ``n_siblings``: that many wrong
    tokens stand *before* the right one at every depth, which makes the draft a tree.
    """

    def __init__(
        self,
        answers: Mapping[int, tuple[int, ...]],
        vocab_size: int,
        *,
        n_siblings: int = 0,
        wrong_depths: frozenset[int] = frozenset(),
    ) -> None:
        self._answers = dict(answers)
        self._vocab_size = vocab_size
        self._n_siblings = n_siblings
        self._wrong_depths = wrong_depths

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [self._draft(known, k) for known in requests]

    def _draft(self, known: Known, k: int) -> Draft:
        n_outputs = len(known.tokens) - known.n_prompt
        right = self._answers.get(known.id, ())[n_outputs:]
        tokens: list[int] = []
        parents: list[int] = []
        trunk = -1
        for depth, token in enumerate(right, start=1):
            level = self._level(token, depth)
            tokens += level
            parents += [trunk] * len(level)
            trunk = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents) if self._n_siblings else ()).head(k)

    def _level(self, token: int, depth: int) -> list[int]:
        """Tokens of one depth; the last one is the one that the next depth hangs on."""
        wrong = [(token + 1 + i) % self._vocab_size for i in range(self._n_siblings + 1)]
        return wrong if depth in self._wrong_depths else [*wrong[: self._n_siblings], token]
