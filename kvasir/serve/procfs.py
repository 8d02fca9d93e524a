"""What the system says of a process, proc(5): why one that does not go on may be well."""

from __future__ import annotations

import os
import time
from pathlib import Path

MAJOR_FAULTS, USER_TICKS, SYSTEM_TICKS = 9, 11, 12
"""Places after the name in ``stat``, as of the state, which is the first."""
STEAL = 8
"""Place in a CPU's line of the system's ``stat``."""


class ProcessSigns:
    """Of a process that runs; nothing is said of one that has ended."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}")
        self._waits: dict[str, int] = {}
        self._stolen: list[int] = []

    @property
    def is_stopped(self) -> bool:
        """A signal stopped it, and it has not gone on."""
        return self._stat()[:1] == ["T"]

    @property
    def n_faults(self) -> int:
        """Pages that it had to wait for, since the disk had them."""
        stat = self._stat()
        return int(stat[MAJOR_FAULTS]) if stat else 0

    @property
    def cpu_seconds(self) -> float:
        """Of all its threads, in steps of 10 ms."""
        stat = self._stat()
        ticks = int(stat[USER_TICKS]) + int(stat[SYSTEM_TICKS]) if stat else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def waited(self) -> float:
        """Seconds since the last call in which one of its threads, that which waited longest, could
        have run and got no CPU; or a CPU, that of which most was stolen, ran another machine."""
        return max(self._unserved(), self._robbed())

    def _unserved(self) -> float:
        before, self._waits = self._waits, {}
        try:
            for path in (self._path / "task").iterdir():
                self._waits[path.name] = int((path / "schedstat").read_text().split()[1])
        except (OSError, IndexError):  # it ends, or the system does not count
            return 0.0
        waits = [wait - before[name] for name, wait in self._waits.items() if name in before]
        return max(waits, default=0) / 1e9

    def _robbed(self) -> float:
        """A thread whose CPU the host took away seems to run, and does not."""
        before, self._stolen = self._stolen, stolen_ticks()
        ticks = [now - then for now, then in zip(self._stolen, before, strict=False)]
        return max(ticks, default=0) / os.sysconf("SC_CLK_TCK")

    def _stat(self) -> list[str]:
        try:
            return (self._path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return []


def stolen_ticks(path: Path = Path("/proc/stat")) -> list[int]:
    """Of each CPU, while which the host ran something else."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except OSError:
        return []
    cpus = [line for line in lines if line[0].startswith("cpu") and line[0] != "cpu"]
    return [int(line[STEAL]) for line in cpus if len(line) > STEAL]


class ThisProcess:
    """What it takes by now."""

    @staticmethod
    def cpu_seconds() -> float:
        return time.process_time()

    @staticmethod
    def resident_bytes() -> int:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @staticmethod
    def n_open_files() -> int:
        return len(os.listdir("/proc/self/fd")) - 1  # the listing is one
