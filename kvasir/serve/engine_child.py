"""What the engine process does, whatever engine is built in it.

Its argument is the file descriptor of its end of a socket pair. The first frame holds the options
as JSON; then messages flow both ways.
It ends when asked to, when the engine fails, or when the API process is gone.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Protocol

from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError, KvasirError
from kvasir.core.messages import (
    AskTimeline,
    Cancel,
    Fatal,
    Ready,
    Release,
    ResetPrefixCache,
    Shutdown,
    StepEvents,
    Submit,
    ToEngine,
)
from kvasir.engine.engine import Engine
from kvasir.serve import frames
from kvasir.serve.settle import hurry, settle, tidy

ABANDON_SECONDS = 5.0
"""A step may last this long after the API process is gone."""


class Built(Protocol):
    """An engine that can start."""

    @property
    def engine(self) -> Engine: ...

    def ready(self) -> Ready: ...


Build = Callable[[EngineOptions], Built]


class Inbox:
    """Reads messages on a thread of its own, so that a long step delays none."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="kvasir-inbox", daemon=True)
        self._thread.start()

    def take(self, *, wait: bool) -> list[ToEngine | None]:
        """All messages that arrived; None stands for the end of the connection."""
        messages = [self._queue.get()] if wait else []
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
            while (payload := frames.receive(self._sock)) is not None:
                self._queue.put(frames.decode_to_engine(payload))
        except OSError:
            pass  # the same as the end of the stream: the other side is gone
        finally:
            self._queue.put(None)
        if not self._ended.wait(ABANDON_SECONDS):
            os._exit(1)


def serve(engine: Engine, inbox: Inbox, sock: socket.socket) -> None:
    """Run steps until told to stop; without work, save what is cached. Raises what the engine
    raises."""
    draining = False
    while True:
        is_idle = not engine.has_work and not draining
        while is_idle and inbox.is_empty and engine.save():
            pass
        if is_idle and inbox.is_empty:
            tidy()
        for message in inbox.take(wait=is_idle):
            if message is None or (isinstance(message, Shutdown) and not message.drain):
                return
            draining = draining or isinstance(message, Shutdown)
            if isinstance(message, AskTimeline):
                sock.sendall(frames.encode(engine.timeline(message)))
            else:
                _apply(engine, message)
            if isinstance(message, Release) and not engine.has_work:
                sock.sendall(frames.encode(StepEvents((), engine.stats())))
        if engine.has_work:
            sock.sendall(frames.encode(engine.step()))
        elif draining:
            return


def _apply(engine: Engine, message: ToEngine) -> None:
    if isinstance(message, Submit):
        engine.submit(message.requests)
    elif isinstance(message, Cancel):
        for request_id in message.ids:
            engine.cancel(request_id)
    elif isinstance(message, Release):
        for request_id in message.ids:
            engine.release(request_id)
    elif isinstance(message, ResetPrefixCache):
        engine.reset_prefix_cache()


def run(sock: socket.socket, build: Build) -> int:
    """Exit status. Whatever goes wrong is told to the API process as ``Fatal``."""
    payload = frames.receive(sock)
    if payload is None:
        return 1
    inbox = None
    hurry()
    try:
        built = build(EngineOptions(**json.loads(payload)))
        settle()
        inbox = Inbox(sock)
        sock.sendall(frames.encode(built.ready()))
        serve(built.engine, inbox, sock)
        built.engine.close()
        return 0
    except KvasirError as error:
        return _fail(sock, Fatal(error.message, isinstance(error, ConfigError)))
    except (BrokenPipeError, ConnectionError):
        return 1
    except Exception as error:
        traceback.print_exc()
        return _fail(sock, Fatal(f"{type(error).__name__}: {error}"))
    finally:
        if inbox is not None:
            inbox.ended()


def _fail(sock: socket.socket, fatal: Fatal) -> int:
    try:
        sock.sendall(frames.encode(fatal))
    except OSError:
        print(f"kvasir engine: {fatal.message}", file=sys.stderr)
    return 1


def main(build: Build) -> int:
    """Ctrl-C and SIGTERM reach the whole process group; only the API process answers them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        return run(sock, build)
