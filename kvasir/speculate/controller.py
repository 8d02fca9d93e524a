"""Which drafts a step takes on: those with which it gives most tokens a second."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from kvasir.speculate.base import Draft, Known
from kvasir.speculate.curve import Curve
from kvasir.speculate.survival import Survival

STALL_SECONDS = 2e-4
"""That a step waits when it is planned behind the one before, not beside it: what follows a token
is drafted when that is known. 6 % of a step of one token of SmolLM2, about."""


class _Slot(NamedTuple):
    """A drafted token."""

    survival: float
    """That the target draws it, and those before it."""
    draft: int
    """Index."""


class Controller:
    """Learns what drafts bring and what steps cost. Drafts without evidence pass as they are, and
    where it is not adaptive, all of them. Deterministic: equal steps in equal order lead to equal
    choices."""

    def __init__(self, *, is_adaptive: bool = True) -> None:
        self._is_adaptive = is_adaptive
        self._survival = Survival()
        self._curve = Curve()

    def chosen(
        self, requests: Sequence[Known], drafts: Sequence[Draft], n_others: int, seconds: float
    ) -> list[Draft]:
        """The part of each draft, those of ``requests``, that pays in a step in which ``n_others``
        more have one token each, and all contexts take ``seconds``. A request that waits for its
        newest token misses the step that is planned meanwhile, unless all wait: where some have no
        draft, those of others must bring a token more."""
        if not self._is_adaptive:
            return list(drafts)
        slots = self._slots(requests, drafts)
        n_taken = self._n_taken(slots, len(requests) + n_others, seconds)
        gains = [0.0] * len(drafts)
        lengths = [0] * len(drafts)
        for survival, i in slots[:n_taken]:
            gains[i] += survival
            lengths[i] += 1
        if n_others or 0 in lengths:
            lengths = [n if gain >= 1 else 0 for n, gain in zip(lengths, gains, strict=True)]
        return [
            self._cut(known, draft, n)
            for known, draft, n in zip(requests, drafts, lengths, strict=True)
        ]

    def drew(self, known: Known, draft: Draft, n_drawn: int) -> None:
        """Of ``draft`` the target drew the first ``n_drawn`` tokens."""
        if draft.evidence:
            self._survival.drew(known.id, draft.evidence, len(draft.tokens), n_drawn)

    def ended(self, known: Known) -> None:
        self._survival.ended(known.id)

    def decoded(self, n_tokens: int, seconds: float) -> None:
        """A step of nothing but newest tokens and drafts took ``seconds`` beside its contexts."""
        self._curve.observe(n_tokens, seconds)

    def over(self, n_tokens: int, n_drafted: int) -> float:
        """How much longer a step of ``n_tokens`` takes for ``n_drafted`` of them: a factor."""
        return self._curve.seconds(n_tokens) / self._curve.seconds(n_tokens - n_drafted)

    def _slots(self, requests: Sequence[Known], drafts: Sequence[Draft]) -> list[_Slot]:
        """All that are drafted with evidence, the likeliest first; of a chain in its order."""
        slots = []
        for i, (known, draft) in enumerate(zip(requests, drafts, strict=True)):
            if draft.evidence:
                each = self._survival.of(known.id, draft.evidence)
                slots += [_Slot(each ** (j + 1), i) for j in range(len(draft.tokens))]
        return sorted(slots, key=lambda slot: -slot.survival)

    def _n_taken(self, slots: Sequence[_Slot], alone: int, seconds: float) -> int:
        """Of the first slots so many as make the rate highest."""
        tokens = accumulate((slot.survival for slot in slots), initial=float(alone))
        best, best_rate = 0, 0.0
        for n, expected in enumerate(tokens):
            took = self._curve.seconds(alone + n) + seconds + (STALL_SECONDS if n else 0.0)
            if expected / took > best_rate:
                best, best_rate = n, expected / took
        return best

    def _cut(self, known: Known, draft: Draft, n: int) -> Draft:
        if not draft.evidence:
            return draft
        if not n:
            self._survival.passed(known.id, draft.evidence)
        return draft.head(n)
