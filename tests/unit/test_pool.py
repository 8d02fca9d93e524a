"""Limits of the native thread pool, and what it may do with CPUs and memory."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir import _native
from kvasir.config.affinity import FREE, Affinity
from kvasir.exec.cpu.place import Touching, new_pool, place, spread

CPUS = sorted(os.sched_getaffinity(0))


def sums(pool: _native.Pool) -> list[int]:
    """Work for all threads."""
    found = np.zeros(64, np.uint64)
    _native.checksums(pool, np.arange(64 << 10, dtype=np.uint8), 1 << 10, found)
    return [int(value) for value in found]


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_pools_start_and_stop(n_threads: int, is_bound: bool) -> None:
    expected = sums(_native.Pool(1))
    for i in range(20):
        cpus = [[CPUS[(i + thread) % len(CPUS)]] for thread in range(n_threads)]
        pool = _native.Pool(n_threads, cpus if is_bound else [])
        assert pool.size == n_threads
        assert sums(pool) == expected


@pytest.mark.parametrize("n_threads", [0, -1, 1025])
def test_impossible_sizes_are_refused(n_threads: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 1024 threads, not {n_threads}"):
        _native.Pool(n_threads)


def test_cpus_are_for_every_thread() -> None:
    with pytest.raises(ValueError, match="CPUs for 1 threads, the pool has 2"):
        _native.Pool(2, [[0]])


@pytest.mark.parametrize("cpu", [-1, 1023, 10**6])
def test_a_cpu_that_is_not_there_is_refused(cpu: int) -> None:
    with pytest.raises(RuntimeError, match="bind a thread"):
        sums(_native.Pool(2, [[cpu], [cpu]]))


def test_the_cpus_of_a_single_thread_are_checked_at_once() -> None:
    with pytest.raises(RuntimeError, match="bind a thread"):
        _native.Pool(1, [[1023]])


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Filter(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint16), ("code", ctypes.POINTER(_Instruction)))


def _fail_to_bind() -> bool:
    """sched_setaffinity fails with EINVAL in the calling thread from now on, as if its CPUs were
    taken from it; False where the system does not let us."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    failed, allowed, sched_setaffinity = 0x50000 | errno.EINVAL, 0x7FFF0000, 203
    code = (_Instruction * 4)(
        (load, 0, 0, 0),
        (jump_if_equal, 0, 1, sched_setaffinity),
        (give, 0, 0, failed),
        (give, 0, 0, allowed),
    )
    prctl = ctypes.CDLL(None).prctl
    no_new_privileges, seccomp, mode_filter = 38, 22, 2
    if prctl(no_new_privileges, 1, 0, 0, 0):
        return False
    return prctl(seccomp, mode_filter, ctypes.byref(_Filter(4, code)), 0, 0) == 0


def test_cpus_that_go_away_later_fail_no_run() -> None:
    pool = _native.Pool(2, [[CPUS[0]], [CPUS[-1]]])
    expected = sums(pool)

    def run() -> list[int] | None:
        """In a thread of its own, which takes the filter with it."""
        if not _fail_to_bind():
            return None
        with pytest.raises(OSError, match="Invalid argument"):
            os.sched_setaffinity(0, CPUS)
        return sums(pool)

    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(run).result()
    if found is None:
        pytest.skip("no seccomp filters here")
    assert found == expected


def test_the_caller_keeps_its_cpus() -> None:
    pool = _native.Pool(1, [[CPUS[0]]])
    sums(pool)
    assert sorted(os.sched_getaffinity(0)) == CPUS


def test_bound_threads_leave_others_free() -> None:
    pool = new_pool(2, Affinity(threads=((CPUS[0],), (CPUS[-1],))))
    assert sums(pool) == sums(new_pool(2, FREE))


def test_memory_is_placed_where_the_machine_has_nodes() -> None:
    """Node 0 alone is everywhere: the calls are made and the bytes stay as they were."""
    affinity = Affinity(nodes=(0,))
    memory = np.zeros(3 << 20, np.uint8)
    place(memory, affinity, huge_pages=True)
    with spread(affinity):
        memory += 7
    place(memory, FREE, huge_pages=False)
    assert int(memory.sum(dtype=np.int64)) == 7 * memory.size


@pytest.mark.parametrize("node", [-1, 1024])
def test_impossible_nodes_are_refused(node: int) -> None:
    with pytest.raises(ValueError, match="not in 0 to 1023"):
        _native.interleave_new_pages([node])


def test_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(RuntimeError, match="spread memory"):
        _native.interleave_pages(np.zeros(1 << 16, np.uint8), [1000])


def test_a_kernel_that_refuses_is_told_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    affinity = Affinity(nodes=(1000,))
    place(np.zeros(1 << 16, np.uint8), affinity, huge_pages=True)
    with spread(affinity):
        pass
    assert len(caplog.records) == 2
    assert all("--numa none" in record.getMessage() for record in caplog.records)


def test_less_than_a_page_has_no_pages_of_its_own() -> None:
    assert _native.advise_huge_pages(np.zeros(100, np.uint8), True)


def resident(memory: NDArray[np.uint8]) -> float:
    """Share of the whole pages that lie in memory."""
    page = os.sysconf("SC_PAGE_SIZE")
    begin = -(-memory.ctypes.data // page) * page
    n = (memory.ctypes.data + memory.size - begin) // page
    found = np.zeros(n, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert (
        libc.mincore(
            ctypes.c_void_p(begin), ctypes.c_size_t(n * page), found.ctypes.data_as(ctypes.c_void_p)
        )
        == 0
    ), os.strerror(ctypes.get_errno())
    return float((found & 1).mean())


def test_populated_pages_keep_what_they_hold() -> None:
    memory = np.arange(3 << 20, dtype=np.int32).view(np.uint8)
    before = memory.copy()
    _native.populate_pages(memory)
    assert np.array_equal(memory, before)
    assert _native.populate_pages(np.zeros(100, np.uint8)), "no whole page"


def test_memory_that_is_expected_lies_in_memory() -> None:
    if not _native.populate_pages(np.zeros(1 << 16, np.uint8)):
        pytest.skip("this kernel cannot populate pages")
    memory = np.frombuffer(mmap.mmap(-1, 96 << 20), np.uint8)
    part = memory[40 << 20 : 60 << 20]
    Touching(part, lambda: True).join()
    assert resident(part) > 0.99
    assert resident(memory[64 << 20 :]) < 0.1


def test_the_end_of_the_interpreter_does_not_wait_for_all_memory() -> None:
    """Nor does it end a thread inside native code, which would end the process."""
    program = (
        "import numpy as np, time\n"
        "from kvasir.exec.cpu.place import Touching\n"
        "touching = Touching(np.empty(4 << 30, np.uint8), lambda: True)\n"
        "time.sleep(0.05)\n"
    )
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert time.monotonic() - began < 20


def test_memory_is_prepared_only_while_nothing_else_is_done() -> None:
    if not _native.populate_pages(np.zeros(1 << 16, np.uint8)):
        pytest.skip("this kernel cannot populate pages")
    memory = np.frombuffer(mmap.mmap(-1, 16 << 20), np.uint8)
    idle = threading.Event()
    touching = Touching(memory, idle.is_set)
    time.sleep(0.1)
    assert resident(memory) < 0.1
    idle.set()
    touching.join()
    assert resident(memory) > 0.99
    busy = Touching(np.empty(16 << 20, np.uint8), lambda: False)
    busy.stop()
    assert not any(thread.name == "kvasir-touch" for thread in threading.enumerate())
