"""Starts the engine process. Imports little: the engine loads its model while the server imports
the rest."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass

from kvasir.config.hardware import oom_kills
from kvasir.config.options import EngineOptions
from kvasir.serve import frames
from kvasir.serve.death import describe_end


@dataclass(frozen=True, slots=True)
class EngineChild:
    process: subprocess.Popen[bytes]
    sock: socket.socket
    """The API process's end. Its closing ends the engine."""
    oom_kills: int = 0
    """Before it started."""

    def death(self) -> str:
        """How it ended, once its connection has. Waits a moment for it."""
        try:
            status = self.process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            return "the engine process stopped answering"
        return describe_end(status, self.oom_kills)


DEATH_SECONDS = 1.0
"""Between the end of a process's connection and its own."""
ENGINE_MODULE = "kvasir.serve.engine_process"


def spawn_engine(options: EngineOptions, module: str = ENGINE_MODULE) -> EngineChild:
    """An engine process joined by an anonymous Unix socket pair, which nobody else can connect to.

    The options travel as JSON in the first frame: nothing secret or long on a command line.
    ``module`` is
    the program: tests put an engine with injected faults in its place.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    # Ctrl-C and SIGTERM reach the whole process group: from its first moment the engine is deaf to
    # them, and here they come a moment later.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    ours.sendall(frames.pack(json.dumps(asdict(options)).encode()))
    return EngineChild(process, ours, oom_kills())


def stop_engine(child: EngineChild, timeout: float) -> int:
    """Exit status of the engine, which gets ``timeout`` seconds after its connection is closed."""
    child.sock.close()
    try:
        return child.process.wait(timeout)
    except subprocess.TimeoutExpired:
        child.process.kill()
        return child.process.wait()
