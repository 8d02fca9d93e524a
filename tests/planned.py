"""Plans of a scheduler without an executor, under the plan checker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.groups import Tables
from kvasir.core.plan import Row, RowOutput, SlotOpen, StepPlan, TableChange
from kvasir.exec.checker import PlanChecker
from kvasir.exec.tables import SlotTables
from kvasir.sched.scheduler import Scheduler


class Placed(NamedTuple):
    """A row, and the whole tables of its slot."""

    row: Row
    tables: Tables


def placed(slot: int, start: int, tokens: tuple[int, ...], tables: Tables, **more: Any) -> Placed:
    """``more``: the other fields of the row."""
    return Placed(Row(slot, start, tokens, **more), tables)


def step_plan(
    step: int, rows: Sequence[Placed], opens: tuple[SlotOpen, ...] = (), **more: Any
) -> StepPlan:
    """A plan that tells the whole tables of its rows."""
    changes = tuple(
        TableChange(row.slot, group, 0, blocks)
        for row, tables in rows
        for group, blocks in enumerate(tables)
    )
    return StepPlan(step, tuple(row for row, _ in rows), opens, changes, **more)


def tables_after(config: SchedulerConfig, plans: Sequence[StepPlan]) -> list[Tables]:
    """Of the rows of the last plan."""
    mirror = SlotTables(config.sizes)
    for plan in plans:
        mirror.apply(plan)
    return list(mirror.of_rows(plans[-1]).values())


class Marks:
    """By name what a saved block stands for."""

    def __init__(self, **kept: bytes) -> None:
        self._kept = {name.encode(): marks for name, marks in kept.items()}

    def put(self, name: bytes, block: bytes) -> bool:
        self._kept[name] = block
        return True

    def take(self, name: bytes) -> bytes:
        return self._kept[name]


class Checkers:
    """One for each scheduler, which sees all of its plans in their order."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Scheduler, PlanChecker] = WeakKeyDictionary()
        self.saved = Marks()

    def of(self, made: Scheduler) -> PlanChecker:
        config = made.config
        if made not in self._known:
            self._known[made] = PlanChecker(config.sizes)
        return self._known[made]

    def ran(self, made: Scheduler, plan: StepPlan, outputs: tuple[RowOutput, ...]) -> None:
        """Raises KvasirError when ``plan`` breaks a promise."""
        checker = self.of(made)
        checker.check(plan, self.saved)
        checker.drew(outputs)
