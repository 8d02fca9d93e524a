"""Threads on their CPUs and memory on its nodes, as ``config.affinity`` decided."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.config.affinity import Affinity

_log = logging.getLogger("kvasir.place")

TOUCH_BYTES = 4 * 2**20
"""Given their pages in one call, after which a thread may be stopped."""


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
    """Gives memory that will be written soon its pages, on a thread of low priority: the first
    write to a page is many times slower than the next ones. Until it is done or stopped."""

    def __init__(self, parts: Sequence[NDArray[np.uint8]]) -> None:
        """``parts``: one axis each; what they hold stays, also while others write to them."""
        self._parts = parts
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="kvasir-touch")
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def stop(self) -> None:
        self._is_stopped = True
        self.join()

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        for part in self._parts:
            for at in range(0, part.size, TOUCH_BYTES):
                if self._is_stopped or not _native.populate_pages(part[at : at + TOUCH_BYTES]):
                    return


def _try(call: Callable[[], None]) -> None:
    try:
        call()
    except RuntimeError as error:
        _log.warning(
            "%s: threads may wait for far memory. Allow set_mempolicy and mbind (in containers: "
            "CAP_SYS_NICE), or say --numa none",
            error,
        )
