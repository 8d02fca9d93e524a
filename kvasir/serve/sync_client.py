"""The blocking side of an engine process, for programs that talk to it without an event loop."""

from __future__ import annotations

import queue
import threading

from kvasir.core.errors import ConfigError, KvasirError
from kvasir.core.messages import Ready, StepEvents
from kvasir.core.request import EngineRequest
from kvasir.serve import frames, framing
from kvasir.serve.messages import Cancel, Fatal, FromEngine, Shutdown, Submit, ToEngine
from kvasir.serve.spawn import EngineChild


class EngineGone(KvasirError):
    """The engine process ended, or said what nobody understands."""

    code = "engine_down"


class SyncClient:
    """One caller at a time. A thread reads, so that Ctrl-C never cuts a message in two."""

    def __init__(self, child: EngineChild) -> None:
        self._child = child
        self._inbox: queue.SimpleQueue[FromEngine | KvasirError] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="kvasir-reader", daemon=True)
        self._reader.start()

    def ready(self) -> Ready:
        """Waits until the engine has loaded. Raises ConfigError or KvasirError with its words."""
        message = self._next()
        if not isinstance(message, Ready):
            raise EngineGone(f"the engine began with {type(message).__name__}")
        return message

    def submit(self, request: EngineRequest) -> None:
        self._send(Submit(request))

    def cancel(self, request_id: int) -> None:
        """Ends a request; one that has ended is fine."""
        self._send(Cancel((request_id,)))

    def step(self) -> StepEvents:
        """News of the next step. Raises KvasirError when the engine fails."""
        while not isinstance(message := self._next(), StepEvents):
            continue
        return message

    def close(self) -> None:
        """Waits until the engine has kept what it still writes; kills it when interrupted."""
        try:
            if self._child.process.poll() is None:
                self._send(Shutdown())
            self._child.process.wait()
        except EngineGone:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends the engine at once, if it still runs."""
        self._child.process.kill()
        self._child.process.wait()
        self._reader.join()
        self._child.forget()

    def _next(self) -> FromEngine:
        message = self._inbox.get()
        if isinstance(message, Fatal):
            raise (ConfigError if message.misused else KvasirError)(message.message)
        if isinstance(message, KvasirError):
            raise message
        return message

    def _send(self, message: ToEngine) -> None:
        try:
            self._child.sock.sendall(frames.encode(message))
        except OSError:
            raise self._gone() from None

    def _read(self) -> None:
        try:
            while (payload := framing.receive(self._child.sock)) is not None:
                self._inbox.put(frames.decode_from_engine(payload))
        except (OSError, ValueError, KvasirError):  # ValueError: what msgspec cannot decode
            pass  # told as the end of the engine, which it is
        self._inbox.put(self._gone())

    def _gone(self) -> EngineGone:
        return EngineGone(self._child.death())
