"""What the machine offers this process: CPUs and memory within affinity and control groups."""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec

from kvasir.config.topology import UNKNOWN, Topology, read_topology

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
VMSTAT = Path("/proc/vmstat")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class Hardware(msgspec.Struct, frozen=True):
    n_cpus: int
    """CPUs that this process may use at once."""
    n_cores: int
    """Physical cores among them, as far as the system tells; never more than ``n_cpus``."""
    free_memory: int
    """Bytes that can still be allocated without swapping or meeting a control group's limit."""
    isa_levels: tuple[str, ...] = ("scalar",)
    """Levels that native code can run here, lowest first."""
    topology: Topology = UNKNOWN
    """Where the CPUs lie that this process may use; empty where the system does not tell."""
    huge_pages: str = ""
    """When the system gives them by itself or on request: always, madvise or never; empty where
    it does not tell."""


def probe(isa_levels: tuple[str, ...] = ("scalar",), cgroup: Path = CGROUP) -> Hardware:
    """Measure this machine; ``isa_levels`` come from the native module."""
    allowed = os.sched_getaffinity(0)
    topology = read_topology(allowed)
    n_cpus = max(1, min(len(allowed), _cpu_quota(cgroup)))
    free, limited = free_memory(), _memory_limit(cgroup)
    return Hardware(
        n_cpus=n_cpus,
        n_cores=min(topology.n_cores or n_cpus, n_cpus),
        free_memory=free if limited is None else min(free, limited[1]),
        isa_levels=isa_levels,
        topology=topology,
        huge_pages=huge_page_mode(HUGE_PAGES),
    )


def free_memory(meminfo: Path = MEMINFO) -> int:
    """Bytes that can be allocated without swapping; 0 where the system does not tell."""
    return 1024 * _stat(meminfo, "MemAvailable:")


def memory_used(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> float:
    """Share of the memory that cannot be allocated any more, 0 to 1: of the machine's or of a
    control group's limit, whichever is nearer. 0 where the system does not tell."""
    total = 1024 * _stat(meminfo, "MemTotal:")
    used = 1 - free_memory(meminfo) / total if total else 0.0
    limited = _memory_limit(cgroup)
    return used if not limited or not limited[0] else max(used, 1 - limited[1] / limited[0])


def oom_kills(cgroup: Path = CGROUP, vmstat: Path = VMSTAT) -> int:
    """Processes killed for want of memory so far, in the control group or on the whole machine;
    only its growth means something. 0 where the system does not tell."""
    paths = (cgroup / "memory.events", cgroup / "memory/memory.oom_control", vmstat)
    return sum(_stat(path, "oom_kill") for path in paths)


def _numbers(path: Path) -> list[int | None]:
    """Numbers in a control group file; "max" and other words are None, a missing file is empty."""
    try:
        words = path.read_text().split()
    except OSError:
        return []
    return [int(word) if word.lstrip("-").isdigit() else None for word in words]


def _cpu_quota(cgroup: Path) -> int:
    """Whole CPUs that the quota pays for; a very large number without a quota."""
    pair = _numbers(cgroup / "cpu.max")
    if not pair:  # version 1 of the interface
        pair = _numbers(cgroup / "cpu/cpu.cfs_quota_us") + _numbers(
            cgroup / "cpu/cpu.cfs_period_us"
        )
    quota, period = (*pair, None, None)[:2]
    if not quota or not period or quota < 0:
        return 1 << 30
    return math.ceil(quota / period)


def _memory_limit(cgroup: Path) -> tuple[int, int] | None:
    """The limit and the bytes that are left below it; None without one. File cache counts as
    free."""
    for limit_file, used_file, stat_file, key in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        limit, used = _numbers(cgroup / limit_file), _numbers(cgroup / used_file)
        if limit and used and limit[0] is not None and used[0] is not None:
            return limit[0], max(0, limit[0] - used[0] + _stat(cgroup / stat_file, key))
    return None


def _stat(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split()[:1] == [key])


def huge_page_mode(path: Path = HUGE_PAGES) -> str:
    """The word in brackets: always, madvise or never; empty where the system does not tell."""
    try:
        words = path.read_text().split()
    except OSError:
        return ""
    return next((word[1:-1] for word in words if word.startswith("[")), "")
