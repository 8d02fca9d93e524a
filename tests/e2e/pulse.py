"""How long an event loop and an engine are busy with one thing, in CPU time: whoever else uses the
machine moves none of it.

With PULSE in the environment, ``fault_server`` gives its loop a pulse, and ``python -m
tests.e2e.pulse`` is an engine that notes what it does between steps; both write into that folder.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import uvloop

from kvasir.engine.build import build_engine
from kvasir.serve.engine_child import main
from kvasir.serve.errands import MIN_SECONDS, SHARE, Errands

EVERY = 0.001
"""Seconds between two beats: of more CPU time between them, all but so much is one thing, or
several that had to be done in one pass of the loop."""
NOTED = 0.002
ENGINE = "tests.e2e.pulse"


def folder() -> Path | None:
    named = os.environ.get("PULSE")
    return Path(named) if named else None


def take_notes(name: str) -> list[float]:
    """Seconds of everything that "api" or "engine" noted since the last call."""
    path = (folder() or Path()) / name
    found = [float(line) for line in path.read_text().split()] if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def _note(name: str, seconds: float) -> None:
    if seconds > NOTED:
        with ((folder() or Path()) / name).open("a") as out:
            out.write(f"{seconds:.6f}\n")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """One with a pulse."""
    loop = uvloop.Loop()

    def beat(last: float) -> None:
        _note("api", time.thread_time() - last)
        loop.call_later(EVERY, beat, time.thread_time())

    loop.call_later(EVERY, beat, time.thread_time())
    return loop


class NotedErrands(Errands):
    """Notes what a gap took beyond its share."""

    def run(self, step_seconds: float, *, is_idle: bool) -> None:
        began = time.thread_time()
        super().run(step_seconds, is_idle=is_idle)
        if not is_idle:
            share = max(MIN_SECONDS, SHARE * step_seconds)
            _note("engine", time.thread_time() - began - share)


if __name__ == "__main__":
    from kvasir.serve import engine_child

    engine_child.Errands = NotedErrands  # type: ignore[misc]
    sys.exit(main(build_engine))
