"""Steps that were started run one after the other, while their caller does something else."""

from __future__ import annotations

import threading

import pytest
from msgspec import structs

from kvasir.core.params import TokenParams
from kvasir.core.plan import SlotOpen, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.exec.fake import FakeExecutor
from tests.planned import placed, step_plan

PARAMS = TokenParams(seed=1, max_tokens=9)
FIRST = step_plan(0, (placed(0, 0, (1, 2, 3), ((0,),)),), (SlotOpen(0, PARAMS, (1, 2, 3)),))
SECOND = step_plan(1, (placed(0, 3, (-1,), ((0,),), out_index=1),))


class Held(FakeExecutor):
    """Its steps wait until they may go on."""

    def __init__(self) -> None:
        super().__init__(EngineSizes(97, 64, 2, 8, 4, 16))
        self.may_go_on = threading.Event()
        self.ran: list[int] = []

    def run(self, plan: StepPlan) -> StepResult:
        assert self.may_go_on.wait(10)
        self.ran.append(plan.step)
        if plan.step > 1:
            raise RuntimeError("injected")
        return super().run(plan)


def test_a_plan_is_started_while_another_runs() -> None:
    executor = Held()
    handles = [executor.start(plan) for plan in (FIRST, SECOND)]
    assert executor.ran == []
    executor.may_go_on.set()
    second, first = handles[1].result(), handles[0].result()
    executor.close()
    assert executor.ran == [0, 1]
    alone = FakeExecutor(executor.sizes)
    assert [alone.run(FIRST).outputs, alone.run(SECOND).outputs] == [first.outputs, second.outputs]


def test_a_failure_comes_with_the_result_and_closing_waits() -> None:
    executor = Held()
    handle = executor.start(structs.replace(FIRST, step=2))
    executor.may_go_on.set()
    executor.close()
    assert executor.ran == [2]
    with pytest.raises(RuntimeError, match="injected"):
        handle.result()
