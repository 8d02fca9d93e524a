"""The backend of programs that name none."""

from __future__ import annotations

import threading

from kvasir.lang.calls import ModelBackend
from kvasir.lang.local import LocalBackend
from kvasir.offline.llm import LLM


class DefaultBackend:
    """Without one the default model is loaded by the first program that asks, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chosen: ModelBackend | None = None

    def choose(self, backend: ModelBackend | LLM | None) -> None:
        with self._lock:
            self._chosen = LocalBackend(backend) if isinstance(backend, LLM) else backend

    def get(self) -> ModelBackend:
        with self._lock:
            if self._chosen is None:
                self._chosen = LocalBackend(LLM())
            return self._chosen


_default = DefaultBackend()
"""Of the process: programs are written where no backend is at hand."""


def set_default_backend(backend: ModelBackend | LLM | None) -> None:
    """For programs that name none. None: the default model, loaded when it is needed."""
    _default.choose(backend)


def backend_of(given: ModelBackend | LLM | None) -> ModelBackend:
    """What a program runs on."""
    if given is None:
        return _default.get()
    return LocalBackend(given) if isinstance(given, LLM) else given
