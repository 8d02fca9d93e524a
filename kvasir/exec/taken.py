"""Which tokens the states of slots have taken in, where rows may draft.

What was drafted wrongly cannot be taken back from a state, so a row of drafts leaves behind the
state after its first token, and an executor keeps what the others would change it by. Which of them
were right is known when the row has run: the next row of the slot takes these in first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.core.errors import KvasirError
from kvasir.core.plan import Row, RowOutput, StepPlan
from kvasir.core.sizes import EngineSizes
from kvasir.sched.rows import accepted, is_draft


@dataclass(frozen=True, slots=True)
class StateStep:
    """What a row does to the state of its slot."""

    at: int
    """Tokens that the state has taken in before the row."""
    path: tuple[int, ...]
    """Of the slot's row before, the drafted tokens that it takes in first, by their indices there:
    those between ``at`` and the start of the row."""
    n_certain: int
    """Tokens of the row that it takes in then; those after them are drafted."""


class StateSlots:
    """A mirror of what plans mean for states. Each plan is begun once, and told what it drew."""

    def __init__(self, sizes: EngineSizes) -> None:
        self.most = max((group.drafts for group in sizes.groups), default=0)
        """Drafted tokens of a row."""
        self._slots: dict[int, tuple[int, tuple[int, ...]]] = {}

    def begin(self, plan: StepPlan) -> list[StateStep]:
        """Of each row. Raises KvasirError where one drafts more than is kept: what keeps it may be
        memory of native code."""
        for opening in plan.opens:
            self._slots.pop(opening.slot, None)
        rows = [self._taken(row) for row in plan.rows]
        for row, one in zip(plan.rows, rows, strict=True):
            self._slots[row.slot] = row.start + one.n_certain, ()
        return rows

    def drew(self, plan: StepPlan, outputs: Sequence[RowOutput]) -> None:
        """The plan has run."""
        if not self.most:
            return
        first = 0
        for row in plan.rows:
            own = tuple(outputs[first : first + row.n_logits])
            first += row.n_logits
            if is_draft(row):
                self._slots[row.slot] = row.start + 1, accepted(row, own)

    def _taken(self, row: Row) -> StateStep:
        at, path = self._slots.get(row.slot, (row.start, ()))
        n_certain = 1 if self.most and is_draft(row) else len(row.tokens)
        if len(row.tokens) - n_certain > self.most:
            raise KvasirError(
                f"slot {row.slot}: {len(row.tokens) - n_certain} drafts over states that keep "
                f"{self.most}"
            )
        return StateStep(at, path[: row.start - at], n_certain)
