"""A generation that has ended is gone: nothing of it waits for a collection of garbage."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from kvasir.serve.generation import Generation
from kvasir.serve.resolved import Job
from kvasir.validation.sampling import SamplingParams


class Silent:
    """An exchange whose client stays, and an engine that takes everything."""

    arrived = 0.0
    slices = None
    timeline = None
    gate = SimpleNamespace(is_closed=False)

    def __init__(self) -> None:
        self.n_released = 0
        self.is_watched = asyncio.Event()

    async def disconnected(self) -> None:
        self.is_watched.set()
        await asyncio.Event().wait()

    def note(self, values: Mapping[str, object]) -> None:
        pass

    async def submit(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(open=(), first_id=0, listen=lambda: None, hush=lambda: None)

    def release(self, stream: Any) -> None:
        self.n_released += 1

    def gaps(self, priority_class: str) -> None:
        """Of its metrics."""


async def generate_and_forget() -> tuple[weakref.ref[Generation], Silent]:
    silent: Any = Silent()
    job = Job((), SamplingParams(), ())
    generation = Generation(job, silent, silent, silent, silent)
    async with generation:
        await silent.is_watched.wait()
    known = weakref.ref(generation)
    del generation
    for _ in range(3):
        await asyncio.sleep(0)  # the task that watches ends
    return known, silent


def test_an_ended_generation_leaves_no_circle() -> None:
    gc.disable()
    try:
        known, silent = asyncio.run(generate_and_forget())
        assert known() is None
        assert silent.n_released == 1
    finally:
        gc.enable()
