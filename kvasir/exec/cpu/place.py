"""Threads on their CPUs and memory on its nodes, as ``config.affinity`` decided."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.config.affinity import Affinity

_log = logging.getLogger("kvasir.place")


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


def _try(call: Callable[[], None]) -> None:
    try:
        call()
    except RuntimeError as error:
        _log.warning(
            "%s: threads may wait for far memory. Allow set_mempolicy and mbind (in containers: "
            "CAP_SYS_NICE), or say --numa none",
            error,
        )
