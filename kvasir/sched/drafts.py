"""Who speculates in a step, and on what."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.sched.request import Request
from kvasir.speculate.base import Draft, Proposer

MIN_OUTPUTS = 2
"""Outputs left below which a draft cannot save a step."""


class Drafts:
    """Asks the proposer once a step, for all that decode."""

    def __init__(self, proposer: Proposer, max_tokens: int, max_model_len: int) -> None:
        """``max_tokens``: drafted tokens of one row."""
        self._proposer = proposer
        self._max_tokens = max_tokens
        self._max_model_len = max_model_len

    def asked(self, ready: Sequence[Request]) -> dict[Request, Draft]:
        """What may follow the committed tokens of those for whom anything is proposed.

        Whoever's newest token is still being drawn cannot speculate in this step, and is left out
        of it to speculate in the next; all others go on without waiting.
        """
        able = [x for x in ready if x.max_outputs - x.n_drawn >= MIN_OUTPUTS]
        drafts = self._proposer.propose(able, self._max_tokens) if able else ()
        return {x: draft for x, draft in zip(able, drafts, strict=True) if draft.tokens}

    def fitting(self, request: Request, draft: Draft, n_spare: int) -> Draft:
        """The part of ``draft`` within ``n_spare`` tokens, context and free blocks."""
        room = min(request.table.room(), self._max_model_len)
        draft = draft.head(max(0, min(n_spare, self._max_tokens, room - request.n_known)))
        return draft if draft.parents else draft.head(request.max_outputs - request.n_drawn - 1)
