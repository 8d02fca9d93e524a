"""What the engine process does, whatever engine is built in it.

Its arguments are file descriptors: its end of a socket pair, memory for its heartbeat, and a file
for where its threads are when it hangs or a fault ends it. The first frame holds the options as
JSON; then messages flow both ways.
It ends when asked to, when the engine fails, or when the API process is gone.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError, KvasirError, printable
from kvasir.core.messages import Ready
from kvasir.engine.engine import Engine
from kvasir.serve import frames, framing
from kvasir.serve.death import SAY_WHERE
from kvasir.serve.errands import Errands
from kvasir.serve.heartbeat import Heartbeat
from kvasir.serve.logs import configure_child
from kvasir.serve.messages import Fatal, Freeze, Shutdown, ToEngine
from kvasir.serve.outbox import Outbox
from kvasir.serve.settle import hurry, rarely, settle, tidy

logger = logging.getLogger("kvasir.engine")

ABANDON_SECONDS = 5.0
"""A step may last this long after the API process is gone."""
LOOK_SECONDS = 0.01
"""Between two looks whether a step has ended sooner than it was expected to."""


class StartableEngine(Protocol):
    """An engine that can start."""

    @property
    def engine(self) -> Engine: ...

    def ready(self) -> Ready: ...


Build = Callable[[EngineOptions], StartableEngine]


class Inbox:
    """Reads messages on a thread of its own, so that a long step delays none."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="kvasir-inbox", daemon=True)
        self._thread.start()

    def take(self, seconds: float | None) -> list[ToEngine | None]:
        """All messages that arrived; None stands for the end of the connection. If there are none
        it waits for one, at most ``seconds``; None: for as long as it takes."""
        messages = []
        if seconds is None or seconds > 0:
            with suppress(queue.Empty):
                messages.append(self._queue.get(timeout=seconds))
        while not self._queue.empty():
            messages.append(self._queue.get())
        return messages

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()

    def ended(self) -> None:
        """The engine has stopped by itself."""
        self._ended.set()

    def _read(self) -> None:
        try:
            while (payload := framing.receive(self._sock)) is not None:
                self._queue.put(frames.decode_to_engine(payload))
        except OSError:
            pass  # the same as the end of the stream: the other side is gone
        finally:
            self._queue.put(None)
        if not self._ended.wait(ABANDON_SECONDS):
            os._exit(1)


def serve(engine: Engine, inbox: Inbox, sock: socket.socket, heartbeat: Heartbeat) -> None:
    """Run steps until told to stop; without work, save what is cached. Raises what the engine
    raises."""
    engine.show(heartbeat)
    outbox = Outbox(sock)
    outbox.explain(engine.timeline)
    errands = Errands(engine, outbox)
    draining, frozen, seconds = False, False, 0.0
    while True:
        heartbeat.turn()
        is_idle = (frozen or not engine.has_work) and not errands
        while is_idle and not draining and inbox.is_empty and engine.save():
            pass
        if is_idle and inbox.is_empty:
            tidy()
        lead = 0.0 if frozen or errands else min(engine.lead, LOOK_SECONDS)
        for message in inbox.take(None if is_idle and not draining else lead):
            if message is None or (isinstance(message, Shutdown) and not message.drain):
                return
            draining = draining or isinstance(message, Shutdown)
            if isinstance(message, Freeze):
                frozen = message.is_frozen
            else:
                errands.take(message)
        frozen = frozen and not draining
        errands.run(seconds, is_idle=not engine.has_work)
        if engine.lead and not frozen:
            continue
        if engine.has_work and not frozen:
            began = time.perf_counter()
            outbox.step(engine.step())
            seconds = time.perf_counter() - began
        elif draining and not errands:
            return


def run(sock: socket.socket, build: Build, heartbeat: Heartbeat) -> int:
    """Exit status. Whatever goes wrong is told to the API process as ``Fatal``."""
    payload = framing.receive(sock)
    if payload is None:
        return 1
    hurry()
    inbox = Inbox(sock)
    try:
        built = build(EngineOptions(**json.loads(payload)))
        settle()
        rarely()
        sock.sendall(frames.encode(built.ready()))
        serve(built.engine, inbox, sock, heartbeat)
        with suppress(OSError):  # all is told, and closing may take a while
            sock.shutdown(socket.SHUT_WR)
        built.engine.close()
        return 0
    except KvasirError as error:
        return _fail(sock, Fatal(error.message, isinstance(error, ConfigError)))
    except (BrokenPipeError, ConnectionError):
        return 1
    except Exception as error:
        logger.exception("the engine failed")
        return _fail(sock, Fatal(printable(f"{type(error).__name__}: {error}")))
    finally:
        inbox.ended()


def _fail(sock: socket.socket, fatal: Fatal) -> int:
    with suppress(OSError):  # the API process has ended, and said why
        sock.sendall(frames.encode(fatal))
    return 1


def main(build: Build) -> int:
    """Ctrl-C and SIGTERM reach the whole process group; only the API process answers them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    configure_child()
    fd, memory, words = map(int, sys.argv[1:4])
    faulthandler.enable(words)
    faulthandler.register(SAY_WHERE, words)
    with socket.socket(fileno=fd) as sock:
        return run(sock, build, Heartbeat(memory))
