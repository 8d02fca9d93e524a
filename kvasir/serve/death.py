"""Why an engine process ended, in words."""

from __future__ import annotations

import re
import signal
from pathlib import PurePath

from kvasir.config.hardware import free_memory, oom_kills
from kvasir.config.sizes import format_size

CAUSES: dict[int, str] = {
    signal.SIGSEGV: "a fault of the native core: please report it",
    signal.SIGABRT: "a fault of the native core: please report it",
    signal.SIGFPE: "a fault of the native core: please report it",
    signal.SIGILL: "this CPU lacks an instruction: choose a lower --isa",
    signal.SIGBUS: "a mapped file was cut short or could not be read: check the model file and the "
    "packed weights, and their disk",
}

SAY_WHERE = signal.SIGUSR2
"""Tells an engine process that hangs to write where its threads are."""
THREAD = re.compile(r"^(?:Current thread|Thread) .*$", re.MULTILINE)
CALL = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
N_CALLS = 6
"""Of a thread that are told, the innermost first."""


def threads_in(dump: str) -> tuple[str, ...]:
    """Where each thread of a process was when ``faulthandler`` wrote ``dump``."""
    threads = (CALL.findall(part) for part in THREAD.split(dump)[1:])
    return tuple(", ".join(_call(*call) for call in calls[:N_CALLS]) for calls in threads)


def _call(path: str, line: str, name: str) -> str:
    return f"{name} ({'/'.join(PurePath(path).parts[-2:])}:{line})"


def describe_end(status: int, oom_kills_before: int) -> str:
    """``status`` as ``Popen.returncode``; ``oom_kills_before``: when the process started."""
    if status >= 0:
        return f"the engine process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    said = f"the engine process was ended by {name} (status {status})"
    cause = _killer(oom_kills_before) if name == "SIGKILL" else CAUSES.get(-status)
    return said if cause is None else f"{said}: {cause}"


def is_fault(status: int, oom_kills_before: int) -> bool:
    """Whether what it computed may have ended it: all but a signal that only others send."""
    return status != -signal.SIGKILL or oom_kills() > oom_kills_before


def _killer(oom_kills_before: int) -> str:
    remedy = "give less to --kv-memory or --max-num-seqs, or choose a smaller model"
    if oom_kills() > oom_kills_before:
        return f"the system ran out of memory and killed a process: {remedy}"
    free = format_size(free_memory())
    return f"out of memory ({free} are free now), or somebody killed it. If it was memory: {remedy}"
