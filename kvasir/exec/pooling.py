"""Which tokens of a step are pooled, and the sums that become vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir.core.plan import StepPlan
from kvasir.core.request import PoolKind

Span = tuple[int, int]


def pooled_span(kind: PoolKind, n_prompt: int) -> Span:
    """Positions [first, end) of the tokens that the vector is the mean of."""
    return {"cls": (0, 1), "mean": (0, n_prompt), "last": (n_prompt - 1, n_prompt)}[kind]


class StepPool(msgspec.Struct, frozen=True):
    """What a step does for the requests that pool, in the order of its rows."""

    tokens: Sequence[int] = ()
    """Indices in the plan's tokens of those that are added to a sum."""
    slots: Sequence[int] = ()
    """Whose each of them is."""
    begun: Sequence[int] = ()
    """Slots whose sum begins."""
    ended: Sequence[tuple[int, int]] = ()
    """Slots whose prompt ends, and of how many tokens the vector is the mean."""


class PooledSlots:
    """Follows plans, in their order."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[Span, int]] = {}
        """Positions that are pooled, and tokens of the prompt."""

    def of(self, plan: StepPlan) -> StepPool:
        for opening in plan.opens:
            if opening.pooling is not None:
                n_prompt = len(opening.prompt)
                self._slots[opening.slot] = pooled_span(opening.pooling, n_prompt), n_prompt
            elif self._slots:
                self._slots.pop(opening.slot, None)
        return self._of_rows(plan) if self._slots else NO_POOL

    def _of_rows(self, plan: StepPlan) -> StepPool:
        tokens: list[int] = []
        slots: list[int] = []
        begun: list[int] = []
        ended: list[tuple[int, int]] = []
        before = 0
        for row in plan.rows:
            if row.slot in self._slots:
                (first, end), n_prompt = self._slots[row.slot]
                own = range(max(row.start, first), min(row.end, end))
                tokens += (before + position - row.start for position in own)
                slots += [row.slot] * len(own)
                begun += [row.slot] if first in own else []
                ended += [(row.slot, end - first)] if row.end == n_prompt else []
            before += len(row.tokens)
        return StepPool(tokens, slots, begun, ended)


NO_POOL = StepPool()


class Sums:
    """f64 [slots, columns]: of the rows so far of each slot's prompt, added one after the other."""

    def __init__(self, n_slots: int, n_columns: int) -> None:
        self.array: NDArray[np.float64] = np.zeros((n_slots, n_columns))

    def begin(self, step: StepPool) -> None:
        for slot in step.begun:
            self.array[slot] = 0.0

    def vectors(self, step: StepPool) -> tuple[bytes, ...]:
        """Of a ``StepResult``, when all rows of the step are added."""
        return tuple(self._vectors(step))

    def _vectors(self, step: StepPool) -> Iterator[bytes]:
        for slot, n in step.ended:
            mean = (self.array[slot] / n).astype("<f4")
            yield mean.tobytes() if np.isfinite(mean).all() else b""
