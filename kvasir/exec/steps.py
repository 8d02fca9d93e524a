"""A thread that runs steps in their order."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from kvasir.core.plan import StepPlan, StepResult
from kvasir.exec.masks import StepMasks

Run = Callable[[StepPlan], StepResult]
_Task = tuple["Future[StepResult]", Run, StepPlan]


class StepThread:
    """Begins with the first step, and lives until ``close`` or the end of the process: also after
    its main thread, as long as others use it. (The pools of ``concurrent.futures`` end before.)"""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._awaited: deque[StepMasks | None] = deque()
        """What the submitted steps wait for, in their order."""
        self._process = os.getpid()

    def submit(
        self, run: Run, plan: StepPlan, masks: StepMasks | None = None
    ) -> Future[StepResult]:
        """The step, behind all that were submitted before. ``masks``: what it waits for."""
        handle: Future[StepResult] = Future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="kvasir-step", daemon=True)
            self._thread.start()
            # The interpreter's end may not find the thread inside native code.
            atexit.register(self.close)
        self._awaited.append(masks)
        self._tasks.put((handle, run, plan))
        return handle

    def close(self) -> None:
        """Waits for what was submitted, and lets it wait for nothing. Does nothing in a child of
        fork."""
        if self._thread is None or os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        for masks in tuple(self._awaited):
            if masks is not None:
                masks.abandon()
        self._tasks.put(None)
        self._thread.join()
        self._thread = None

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            handle, run, plan = task
            try:
                handle.set_result(run(plan))
            except BaseException as error:
                handle.set_exception(error)
            self._awaited.popleft()
            del task, handle, run, plan  # or they would live until the next step
