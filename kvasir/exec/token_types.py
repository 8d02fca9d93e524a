"""Which tokens of a step belong to a second text, for models that tell two texts apart."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.core.plan import Row, StepPlan


class TokenTypes:
    """Follows plans, in their order: a slot may be opened plans before its first row."""

    def __init__(self) -> None:
        self._seconds: dict[int, int] = {}

    def open(self, plan: StepPlan) -> None:
        for opening in plan.opens:
            self._seconds[opening.slot] = opening.second

    def second(self, slot: int) -> int:
        """Where the second text of a slot's prompt begins; 0: there is none."""
        return self._seconds.get(slot, 0)

    def of(self, rows: Sequence[Row]) -> list[int]:
        """Per token of rows whose slots are open 1 if it is of a second text, else 0."""
        return [
            int(0 < self.second(row.slot) <= row.start + j)
            for row in rows
            for j in range(len(row.tokens))
        ]
