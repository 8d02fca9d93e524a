"""When a program ends before its end: cancelled, or out of time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from kvasir.core.errors import KvasirError


class ProgramCancelled(KvasirError):
    """Somebody cancelled the program, or an error ended it."""

    code = "cancelled"


class ProgramTimeout(KvasirError):
    """The program's time is up."""

    code = "deadline_exceeded"


class Stop:
    """Of one program: reaches every call that waits for a model."""

    def __init__(self, seconds: float | None = None) -> None:
        self._lock = threading.Lock()
        self._acts: dict[int, Callable[[], None]] = {}
        self._n_acts = 0
        self._is_cancelled = False
        self._seconds = seconds
        self._by = inf if seconds is None else time.monotonic() + seconds

    @property
    def seconds_left(self) -> float | None:
        """0 when none is left; None without a limit."""
        return None if self._by == inf else max(0.0, self._by - time.monotonic())

    def check(self) -> None:
        """Raises ProgramCancelled or ProgramTimeout."""
        if self._is_cancelled:
            raise ProgramCancelled("the program was cancelled")
        if self.seconds_left == 0.0:
            raise self.timeout()

    def timeout(self) -> ProgramTimeout:
        return ProgramTimeout(f"the program took longer than its timeout of {self._seconds} s")

    def cancel(self) -> None:
        """All calls that wait, and all that come."""
        with self._lock:
            self._is_cancelled = True
            acts = tuple(self._acts.values())
        for act in acts:
            act()

    @contextmanager
    def watching(self, act: Callable[[], None]) -> Iterator[None]:
        """``cancel`` calls ``act`` meanwhile. Raises what ``check`` raises, before and after."""
        self.check()
        with self._lock:
            number, self._n_acts = self._n_acts, self._n_acts + 1
            self._acts[number] = act
        try:
            if self._is_cancelled:
                act()
            yield
        except KvasirError:
            self.check()  # it is why the call failed
            raise
        finally:
            with self._lock:
                del self._acts[number]
