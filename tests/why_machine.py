"""Timelines of an engine that is made up: what each step costs is known, and what delays a request
is put there.
"""

from __future__ import annotations

from collections.abc import Callable

from kvasir.serve.slices import at_once
from kvasir.timing.cost import CostModel, Costs, Load, chunk_load
from kvasir.timing.records import Mark, StepRecord
from kvasir.timing.timeline import Timeline
from kvasir.timing.why import Began, EnginePlaces, Unread, Why, all_read, explain, fitted

TRUE = CostModel(Costs(step=4e-3, row=1e-3, token=2e-4, pair=1e-9, entry=1e-9))
PLACES = EnginePlaces(n_slots=4, block_size=16)
N_PROMPT, N_OUTPUT = 64, 200


class Machine:
    """Makes a timeline by hand: a clock, one request that matters (1), and others."""

    def __init__(self, jitter: Callable[[], float] = lambda: 1.0) -> None:
        """``jitter``: by which factor each step takes longer than it should."""
        self._jitter = jitter
        self.now = 100.0
        self.timeline = Timeline(lambda: self.now)
        self.n = 0

    def mark(self, kind: str, n_tokens: int = 0, detail: str = "", *, of: int = 1) -> None:
        self.timeline.add(Mark(of, self.now, kind, n_tokens, detail))

    def step(
        self,
        decodes: tuple[int, ...] = (),
        chunks: tuple[tuple[int, int, int], ...] = (),
        *,
        slower: float = 1.0,
        blocks_free: int = 100,
        n_waiting: int = 0,
    ) -> None:
        load = Load(*(len(decodes) * x for x in chunk_load(1, N_PROMPT)))
        for _, start, n in chunks:
            load = load.plus(chunk_load(n, start))
        seconds = TRUE.step_seconds(load) * slower * self._jitter()
        record = StepRecord(
            self.n, self.now, seconds, decodes, chunks, (), (), n_waiting, blocks_free
        )
        self.timeline.add(record)
        self.n += 1
        self.now += seconds

    def usual(self) -> None:
        """Steps of others, before all: what steps cost is known from these."""
        for i in range(120):
            self.step(tuple(range(10, 11 + i % 4)))
            self.step((10,), ((11, 0, 16 * (1 + i % 4)),))

    def prompt(self, beside: tuple[int, ...] = ()) -> None:
        self.step(beside, ((1, 0, N_PROMPT),))

    def answer(self, n: int = N_OUTPUT, beside: tuple[int, ...] = (), slower: float = 1.0) -> None:
        for _ in range(n):
            self.step((1, *beside), slower=slower)

    def why(
        self,
        *,
        received: float | None = None,
        compile_seconds: float = 0.0,
        loads: bool = False,
        has_masks: bool = False,
        unread: Unread = all_read,
    ) -> Why:
        story = self.timeline.story(1)
        assert story is not None
        costs = at_once(fitted(self.timeline.recent(5000)[:240], N_PROMPT))
        steps = self.timeline.steps_of(1)
        begun = story.arrived if received is None else received
        began = Began(begun, compile_seconds, loads, has_masks)
        return at_once(explain(story, steps, costs, PLACES, began, unread))


def seconds(why: Why, cause: str) -> float:
    return sum(part.seconds for part in why.parts if part.cause == cause)


def wait(machine: Machine, beside: tuple[int, ...], blocks_free: int) -> None:
    for _ in range(100):
        machine.step(beside, n_waiting=1, blocks_free=blocks_free)


def slots(machine: Machine) -> float:
    began = machine.now
    wait(machine, (-4, -3, -2, -1), 100)
    return machine.now - began


def blocks(machine: Machine) -> float:
    began = machine.now
    wait(machine, (10, 11), 1)
    return machine.now - began


def passed(machine: Machine) -> float:
    """All places are taken, the last by who came later."""
    began = machine.now
    wait(machine, (-4, -3, -2, 10), 100)
    return machine.now - began


def turn(machine: Machine) -> float:
    began = machine.now
    wait(machine, (10, 11), 100)
    return machine.now - began
