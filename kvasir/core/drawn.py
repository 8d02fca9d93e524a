"""What a plan drew, for the references of the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvasir.core.plan import RowOutput, StepPlan, referred


class Drawn(msgspec.Struct, frozen=True):
    """Nothing yet, before the first plan."""

    tokens: tuple[int, ...] = ()
    """Per logit row."""
    drafts: Mapping[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """What the executor drafted, by the last logit row of the row that asked for it."""

    @classmethod
    def by(
        cls,
        plan: StepPlan,
        outputs: Sequence[RowOutput],
        drafts: Sequence[tuple[int, ...]] = (),
    ) -> Drawn:
        """``drafts``: of a ``StepResult``."""
        tokens = tuple(output.token for output in outputs)
        if not drafts:
            return cls(tokens)
        last, found = -1, {}
        for row, drafted in zip(plan.rows, drafts, strict=True):
            last += row.n_logits
            if drafted:
                found[last] = drafted
        return cls(tokens, found)

    def knows(self, token: int) -> bool:
        """Whether a reference stands for anything."""
        row, draft = referred(token)
        return row < len(self.tokens) and draft <= len(self.drafts.get(row, ()))

    def ids(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """``tokens`` with ids in the places of references.

        One to a row that drew nothing (its logits were not finite) becomes token 0: its request has
        failed by the time this row is committed, and the row is dropped.
        """
        return tuple(token if token >= 0 else self._token(token) for token in tokens)

    def _token(self, token: int) -> int:
        row, draft = referred(token)
        return max(0, self.drafts[row][draft - 1] if draft else self.tokens[row])
