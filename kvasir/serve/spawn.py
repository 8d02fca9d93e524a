"""Starts the engine process. Imports little: the engine loads its model while the server imports
the rest."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from dataclasses import asdict

import msgspec

from kvasir.config.hardware import oom_kills
from kvasir.config.options import EngineOptions
from kvasir.serve import framing
from kvasir.serve.death import describe_end, is_fault, threads_in
from kvasir.serve.heartbeat import Heartbeat, new_memory
from kvasir.serve.interpreter import module_command


class EngineChild(msgspec.Struct, frozen=True):
    process: subprocess.Popen[bytes]
    sock: socket.socket
    """The API process's end. Its closing ends the engine."""
    heartbeat: Heartbeat
    """What it shows while it runs, and has shown."""
    words: int
    """A descriptor, of what it writes when it is told to, or a fault ends it."""
    oom_kills: int = 0
    """Before it started."""

    @property
    def where(self) -> str:
        """Where its threads were at the end, in a line; empty: it did not say so."""
        dump = os.pread(self.words, MAX_WORDS, 0).decode(errors="replace")
        return "".join(f"; a thread was in {thread}" for thread in threads_in(dump))

    def death(self) -> str:
        """How it ended, once its connection has. Waits a moment for it."""
        try:
            status = self.process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            return "the engine process stopped answering"
        return describe_end(status, self.oom_kills)

    @property
    def is_fault(self) -> bool:
        """Of one that ended: whether what it computed may have ended it."""
        return is_fault(self.process.wait(), self.oom_kills)

    def forget(self) -> None:
        """Give back what is here of one that has ended."""
        self.sock.close()
        self.heartbeat.close()
        os.close(self.words)


MAX_WORDS = 2**16
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
    memory, words = new_memory(), os.memfd_create("kvasir-words")
    # Ctrl-C and SIGTERM reach the whole process group: from its first moment the engine is deaf to
    # them, and here they come a moment later.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with theirs:
            process = subprocess.Popen(
                [*module_command(module), str(theirs.fileno()), str(memory), str(words)],
                pass_fds=(theirs.fileno(), memory, words),
                stdin=subprocess.DEVNULL,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    heartbeat = Heartbeat(memory)
    os.close(memory)
    ours.sendall(framing.pack(json.dumps(asdict(options)).encode()))
    return EngineChild(process, ours, heartbeat, words, oom_kills())


class Engines:
    """The engine processes of a server: one, and for a while the one that takes its place."""

    def __init__(self, options: EngineOptions, module: str = ENGINE_MODULE) -> None:
        """``module``: see ``spawn_engine``."""
        self.options = options
        """Of engines that are started from now on."""
        self._module = module
        self._children: list[EngineChild] = []

    def start(self, options: EngineOptions | None = None) -> EngineChild:
        """One more, with ``options`` of its own or those of all."""
        child = spawn_engine(options or self.options, self._module)
        self._children.append(child)
        return child

    def forget(self, child: EngineChild) -> None:
        """It has ended."""
        self._children.remove(child)
        child.forget()

    def kill(self) -> None:
        """All of them, at once."""
        for child in self._children:
            child.process.kill()

    def stop(self, timeout: float) -> None:
        """End all; each gets ``timeout`` seconds after its connection is closed."""
        while self._children:
            child = self._children[0]
            child.sock.close()
            try:
                child.process.wait(timeout)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            self.forget(child)
