"""Which token follows the last one of a row that draws none: heads make entries of both."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.core.plan import Row, StepPlan
from kvasir.sched.rows import first_draw

UNKNOWN = -1


class Successors:
    """Follows plans, in their order."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """Prompt and output of each slot, as far as they were known when it was opened."""

    def open(self, plan: StepPlan) -> None:
        for opening in plan.opens:
            self._known[opening.slot] = opening.prompt, opening.output

    def of(self, rows: Sequence[Row]) -> list[int]:
        """Of each row; ``UNKNOWN`` where it draws, and where nobody has told."""
        return [UNKNOWN if first_draw(row) >= 0 else self._after(row) for row in rows]

    def _after(self, row: Row) -> int:
        prompt, output = self._known[row.slot]
        at = row.start + len(row.tokens)
        if at < len(prompt):
            return prompt[at]
        at -= len(prompt)
        return output[at] if at < len(output) else UNKNOWN
