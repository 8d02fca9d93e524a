"""Starts the engine process. Imports little: the engine loads its model while the server imports
the rest."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass

from kvasir.config.options import EngineOptions
from kvasir.serve import frames


@dataclass(frozen=True, slots=True)
class EngineChild:
    process: subprocess.Popen[bytes]
    sock: socket.socket
    """The API process's end. Its closing ends the engine."""


ENGINE_MODULE = "kvasir.serve.engine_process"


def spawn_engine(options: EngineOptions, module: str = ENGINE_MODULE) -> EngineChild:
    """An engine process joined by an anonymous Unix socket pair, which nobody else can connect to.

    The options travel as JSON in the first frame: nothing secret or long on a command line.
    ``module`` is
    the program: tests put an engine with injected faults in its place.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
        )
    ours.sendall(frames.pack(json.dumps(asdict(options)).encode()))
    return EngineChild(process, ours)


def stop_engine(child: EngineChild, timeout: float) -> int:
    """Exit status of the engine, which gets ``timeout`` seconds after its connection is closed."""
    child.sock.close()
    try:
        return child.process.wait(timeout)
    except subprocess.TimeoutExpired:
        child.process.kill()
        return child.process.wait()
