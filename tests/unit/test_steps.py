"""The thread that steps run on."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvasir.core.plan import RowOutput, StepPlan, StepResult
from kvasir.exec.steps import StepThread

PLANS = [StepPlan(step=i, rows=()) for i in range(5)]
OUTLIVES = """
import threading, time
from kvasir.core.plan import StepPlan, StepResult
from kvasir.exec.steps import StepThread

def work():
    steps = StepThread()
    time.sleep(0.3)  # the main thread has ended
    print([steps.submit(lambda plan: StepResult(()), StepPlan(i, ())).result() for i in range(3)])
    steps.close()

threading.Thread(target=work).start()
"""


def result(plan: StepPlan) -> StepResult:
    if plan.step == 2:
        raise ValueError("step 2")
    return StepResult((RowOutput(plan.step),))


def test_steps_run_in_their_order_and_a_failure_ends_none_of_the_others() -> None:
    before, steps, ran = set(threading.enumerate()), StepThread(), list[int]()

    def run(plan: StepPlan) -> StepResult:
        ran.append(plan.step)
        return result(plan)

    handles = [steps.submit(run, plan) for plan in PLANS]
    with pytest.raises(ValueError, match="step 2"):
        handles[2].result()
    assert [handles[i].result().outputs[0].token for i in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert ran == [0, 1, 2, 3, 4]
    (own,) = set(threading.enumerate()) - before
    assert own.name == "kvasir-step"
    steps.close()
    assert not own.is_alive()
    steps.close()


def test_closing_waits_for_what_was_submitted() -> None:
    steps = StepThread()
    handle = steps.submit(result, PLANS[0])
    steps.close()
    assert handle.done()


def test_steps_go_on_after_the_main_thread() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", OUTLIVES], capture_output=True, text=True, timeout=60, cwd=root
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("StepResult") == 3
