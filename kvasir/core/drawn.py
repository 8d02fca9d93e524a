"""What a plan drew, for the references of the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvasir.core.plan import MAX_DRAFTS, RowOutput, StepPlan, referred


class Drawn(msgspec.Struct, frozen=True):
    """Nothing yet, before the first plan."""

    tokens: tuple[int, ...] = ()
    """Per logit row."""
    drafts: Mapping[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """What the executor drafted, by the last logit row of the row that asked for it."""
    siblings: Mapping[int, tuple[tuple[int, ...], ...]] = msgspec.field(default_factory=dict)
    """By the same row and the rank the next best in their places."""

    @classmethod
    def by(
        cls,
        plan: StepPlan,
        outputs: Sequence[RowOutput],
        drafts: Sequence[tuple[int, ...]] = (),
        siblings: Sequence[tuple[tuple[int, ...], ...]] = (),
    ) -> Drawn:
        """``drafts`` and ``siblings``: of a ``StepResult``."""
        tokens = tuple(output.token for output in outputs)
        if not drafts:
            return cls(tokens)
        last, found, others = -1, {}, {}
        for i, (row, drafted) in enumerate(zip(plan.rows, drafts, strict=True)):
            last += row.n_logits
            if drafted:
                found[last] = drafted
                others[last] = siblings[i] if siblings else ()
        return cls(tokens, found, others)

    def knows(self, token: int) -> bool:
        """Whether a reference stands for anything."""
        row, draft = referred(token)
        return row < len(self.tokens) and (not draft or self._drafted(row, draft) is not None)

    def ids(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """``tokens`` with ids in the places of references.

        One to a row that drew nothing (its logits were not finite) becomes token 0: its request has
        failed by the time this row is committed, and the row is dropped.
        """
        return tuple(token if token >= 0 else self._token(token) for token in tokens)

    def _token(self, token: int) -> int:
        row, draft = referred(token)
        found = self._drafted(row, draft) if draft else self.tokens[row]
        if found is None:
            raise KeyError(token)
        return max(0, found)

    def _drafted(self, row: int, draft: int) -> int | None:
        rank, place = divmod(draft - 1, MAX_DRAFTS)
        ranks = (self.drafts.get(row, ()), *self.siblings.get(row, ()))
        return ranks[rank][place] if rank < len(ranks) and place < len(ranks[rank]) else None
