"""CPU seconds of a server's processes and of the load on it, apart."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

LOCAL = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds, user and system, of all threads."""

    client: float
    """Of this process, which makes the load."""
    api: float
    engine: float

    def since(self, before: CpuTimes) -> CpuTimes:
        return CpuTimes(
            self.client - before.client, self.api - before.api, self.engine - before.engine
        )

    def report(self, n_tokens: int) -> dict[str, Any]:
        """Seconds, and microseconds for each output token, of each process."""
        found = {"client": self.client, "api": self.api, "engine": self.engine}
        return {
            "seconds": {name: round(value, 3) for name, value in found.items()},
            "microseconds_per_token": {
                name: round(1e6 * value / n_tokens, 1) for name, value in found.items()
            },
        }


@dataclass(frozen=True, slots=True)
class ServerProcesses:
    """A server on this machine."""

    api: psutil.Process
    engine: psutil.Process

    def times(self) -> CpuTimes:
        """So far. Raises psutil.Error when a process has ended."""
        own = os.times()
        return CpuTimes(own.user + own.system, cpu_seconds(self.api), cpu_seconds(self.engine))


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def exact_cpu_seconds(pid: int) -> float:
    """Of all threads that live, to the nanosecond where the system counts them so (Linux), else
    to its clock's tick. Raises psutil.Error when the process has ended."""
    files = list(Path("/proc", str(pid), "task").glob("*/schedstat"))
    if not files:
        return cpu_seconds(psutil.Process(pid))
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def processes_of(pid: int) -> ServerProcesses | None:
    """The server whose API process is ``pid``; None without an engine process of its own."""
    try:
        api = psutil.Process(pid)
        children = api.children()
    except psutil.Error:
        return None
    return ServerProcesses(api, children[0]) if len(children) == 1 else None


def server_at(host: str, port: int) -> ServerProcesses | None:
    """The server that listens there; None when it is elsewhere, or not ours to look into."""
    if host not in LOCAL:
        return None
    try:
        found = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    pids = {
        entry.pid
        for entry in found
        if entry.status == psutil.CONN_LISTEN
        and entry.laddr
        and entry.laddr.port == port
        and entry.pid
    }
    return processes_of(pids.pop()) if len(pids) == 1 else None
