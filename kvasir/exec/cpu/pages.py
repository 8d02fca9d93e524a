"""Weights in huge pages. Where a page ends the CPU stops fetching ahead and looks up the next:
with pages of 4 kB, such as those of a mapped file, one stream of a small model is 13 % slower
(SmolLM2, Zen 4 in a virtual machine)."""

from __future__ import annotations

import logging
import mmap
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.config.hardware import HUGE_PAGES, huge_page_mode

Bytes = NDArray[np.uint8]
_log = logging.getLogger("kvasir.pages")

HUGE_BYTES = 2 << 20
LINE = 64
LEAST_BYTES = 16 << 20
"""Of weights: fewer have no use for such pages, whose first write may take milliseconds."""
ROLLUP = Path("/proc/self/smaps_rollup")


def gives_huge_pages(path: Path = HUGE_PAGES) -> bool:
    """Whether the system does, by itself or where it is asked."""
    return huge_page_mode(path) in ("always", "madvise")


def huge_memory(n_bytes: int) -> Bytes:
    """Zeros that nobody has touched, from the start of a huge page on; the system is asked for such
    pages, and may give others. Raises OSError where it has no memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    whole = -(-n_bytes // HUGE_BYTES) * HUGE_BYTES
    memory = np.frombuffer(mmap.mmap(-1, whole + HUGE_BYTES, flags=flags), np.uint8)
    begin = -memory.ctypes.data % HUGE_BYTES
    memory = memory[begin : begin + whole]
    _native.advise_huge_pages(memory, True)
    return memory[:n_bytes]


class WeightMemory:
    """Where weights are packed to: one run of huge pages, or an array for each."""

    def __init__(self, n_bytes: int, *, huge: bool) -> None:
        """``n_bytes``: of all, each rounded up to a cache line."""
        self._left: Bytes | None = None
        if huge and n_bytes >= LEAST_BYTES:
            with suppress(OSError):  # arrays may have room, or say how much they lack
                self._left = huge_memory(n_bytes)

    def take(self, n_bytes: int) -> Bytes:
        """Zeros."""
        if self._left is None:
            return np.zeros(n_bytes, np.uint8)
        taken, self._left = self._left[:n_bytes], self._left[-(-n_bytes // LINE) * LINE :]
        return taken


def read_whole(path: Path) -> Bytes:
    """The file in huge pages. Raises OSError, also where it becomes shorter meanwhile."""
    with path.open("rb", buffering=0) as stream:
        memory = huge_memory(stream.seek(0, 2))
        stream.seek(0)
        at = 0
        while at < memory.size:
            n = stream.readinto(memory.data[at:])
            if not n:
                raise OSError(f"ends after {at} of {memory.size} bytes")
            at += n
    return memory


def in_huge_pages(rollup: Path = ROLLUP) -> int:
    """Bytes of this process; 0 where the system does not tell."""
    with suppress(OSError):
        words = (line.split() for line in rollup.read_text(encoding="ascii").splitlines())
        return sum(1024 * int(found[1]) for found in words if found[0] == "AnonHugePages:")
    return 0


def tell(wanted: int, found: int) -> None:
    """Where of ``wanted`` bytes only ``found`` came to lie in huge pages, a line in the log says
    what helps."""
    if wanted >= LEAST_BYTES and found < wanted / 2:
        _log.warning(
            "%d of %d MB of weights lie in huge pages, decoding is slower than it could be: free "
            "memory is in pieces. Try: echo 1 | sudo tee /proc/sys/vm/compact_memory",
            found >> 20,
            wanted >> 20,
        )
