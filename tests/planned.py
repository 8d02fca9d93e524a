"""Plans of a scheduler without an executor, under the plan checker."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from kvasir.core.plan import RowOutput, StepPlan
from kvasir.exec.checker import PlanChecker
from kvasir.sched.scheduler import Scheduler


class Checkers:
    """One for each scheduler, which sees all of its plans in their order."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Scheduler, PlanChecker] = WeakKeyDictionary()
        self.saved: dict[bytes, bytes] = {}
        """By name what a saved block stands for."""

    def of(self, made: Scheduler) -> PlanChecker:
        config = made.config
        if made not in self._known:
            self._known[made] = PlanChecker(config.groups, config.block_size)
        return self._known[made]

    def ran(self, made: Scheduler, plan: StepPlan, outputs: tuple[RowOutput, ...]) -> None:
        """Raises KvasirError when ``plan`` breaks a promise."""
        checker = self.of(made)
        for save in plan.saves:
            self.saved[save.name] = checker.read(save.group, save.block)
        for load in plan.loads:
            checker.write(load.group, load.block, self.saved[load.name])
        checker.check(plan)
        checker.drew(outputs)
