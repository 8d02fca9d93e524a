"""What a figure was measured on: machine, versions, code, and who else used the CPU meanwhile."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import psutil

import kvasir
from kvasir import _native
from kvasir.config.hardware import probe

# Flags that decide which kernels a CPU can run.
FLAGS = (
    "sse4_2", "avx", "avx2", "f16c", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip


def fingerprint() -> dict[str, Any]:
    """Machine and software as JSON-ready values. Memory in bytes."""
    hardware = probe(tuple(_native.levels()))
    return {
        "cpu": _cpuinfo("model name") or platform.processor(),
        "cpu_family": " ".join(filter(None, map(_cpuinfo, ("vendor_id", "cpu family", "model")))),
        "flags": [flag for flag in FLAGS if flag in _cpuinfo("flags").split()],
        "isa_levels": list(hardware.isa_levels),
        "cpus": hardware.n_cpus,
        "cores": hardware.n_cores,
        "memory_nodes": len(hardware.topology.nodes),
        "huge_pages": hardware.huge_pages or None,
        "memory": psutil.virtual_memory().total,
        "memory_free": hardware.free_memory,
        "load_average": list(os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kvasir": kvasir.__version__,
        "commit": _commit(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _cpuinfo(key: str) -> str:
    """The first value of ``key`` in /proc/cpuinfo, empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")


def _commit() -> str | None:
    """The commit of a source checkout, "+" when it has changes but for kept results; None for an
    installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD")
    changes = git("status", "--porcelain", "--", ".", ":!bench/results")
    return (commit + ("+" if changes else "")) or None


class Meter:
    """Share of the whole machine that other processes took while the block ran.

    ``foreign`` lies in 0 … 1 and counts stolen time; above 0.1 a figure should not be trusted.
    """

    seconds = 0.0
    foreign = 0.0

    def __enter__(self) -> Meter:
        self._busy, self._own, self._start = _busy_seconds(), _own_seconds(), time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._start
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        capacity = self.seconds * (os.cpu_count() or 1)
        self.foreign = round(min(1.0, max(0.0, others / capacity)), 4)


def _busy_seconds() -> float:
    """CPU seconds of the machine that were not idle; guests are counted in user time already."""
    times = psutil.cpu_times()
    steal = getattr(times, "steal", 0.0)
    return float(times.user + times.nice + times.system + times.irq + times.softirq + steal)


def _own_seconds() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system
