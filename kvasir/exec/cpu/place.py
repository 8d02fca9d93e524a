"""Threads on their CPUs and memory on its nodes, as ``config.affinity`` decided."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.config.affinity import Affinity

_log = logging.getLogger("kvasir.place")

TOUCH_BYTES = 2 * 2**20
"""Given their pages in one call, after which a thread may be stopped: one huge page, up to 6 ms
where the host of a virtual machine has to find it too (a two-core EPYC)."""
PAUSE_SECONDS = 0.02
"""Between two looks whether there is nothing else to do."""


def new_pool(n_threads: int, affinity: Affinity) -> _native.Pool:
    """Its threads spread the memory that they touch first for their whole lives: weights read from
    a file lie where their first reader has them."""
    with spread(affinity):
        return _native.Pool(n_threads, affinity.threads)


@contextmanager
def spread(affinity: Affinity) -> Iterator[None]:
    """Memory that this thread touches first in the block takes turns on the nodes; a kernel that
    refuses, as in many containers, is a line in the log."""
    if not affinity.nodes:
        yield
        return
    _try(lambda: _native.interleave_new_pages(affinity.nodes))
    try:
        yield
    finally:
        _try(lambda: _native.interleave_new_pages(()))


def place(memory: NDArray[np.uint8], affinity: Affinity, huge_pages: bool) -> None:
    """What nobody has touched: nodes in turns, and whether its pages may be huge."""
    if affinity.nodes:
        _try(lambda: _native.interleave_pages(memory, affinity.nodes))
    _native.advise_huge_pages(memory, huge_pages)


class Touching:
    """Gives memory that will be written its pages before, while nothing else is to be done: the
    first write to a page is many times slower than the next ones. Until it is done or stopped, or
    the main thread ends: a thread that the interpreter ends inside a native call ends the
    process."""

    def __init__(self, memory: NDArray[np.uint8], is_idle: Callable[[], bool]) -> None:
        """``memory``: one axis; what it holds stays, also while others write to it. Both are kept
        alive until then."""
        self._is_stopped = False  # no lock, which a fork could leave taken
        self._thread = threading.Thread(
            target=self._run, args=(memory, is_idle), name="kvasir-touch"
        )
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def stop(self) -> None:
        self._is_stopped = True
        if self._thread is not threading.current_thread():  # where garbage may be collected too
            self.join()

    def _run(self, memory: NDArray[np.uint8], is_idle: Callable[[], bool]) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        for at in range(0, memory.size, TOUCH_BYTES):
            while not self._ends and not is_idle():
                time.sleep(PAUSE_SECONDS)
            if self._ends or not _native.populate_pages(memory[at : at + TOUCH_BYTES]):
                return

    @property
    def _ends(self) -> bool:
        return self._is_stopped or not threading.main_thread().is_alive()


def _try(call: Callable[[], None]) -> None:
    try:
        call()
    except RuntimeError as error:
        _log.warning(
            "%s: threads may wait for far memory. Allow set_mempolicy and mbind (in containers: "
            "CAP_SYS_NICE), or say --numa none",
            error,
        )
