"""Every cause of a slow answer, put into timelines of a made-up engine at random, and what is said
of them: ``python -m tests.why_runs [--runs 20] [--output FILE]``.

Steps take what a cost model says, times a factor of their own; how long the cause delays, what
stands beside the request and how long its answer is are drawn. It is told right where the cause is
named and its seconds are within a tenth of those that were put there.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kvasir.bench.fingerprint import fingerprint
from kvasir.bench.report import command_line
from kvasir.serve.backpressure import Backpressure
from kvasir.timing.why import Why
from tests.why_machine import N_PROMPT, TRUE, Machine, blocks, seconds, slots, turn

JITTER = 0.05
"""Standard deviation of a step's factor."""
WITHIN = 0.1


class Told(NamedTuple):
    cause: str | None
    truth: float
    """Seconds that were put there."""
    why: Why

    @property
    def is_named(self) -> bool:
        return self.why.cause == self.cause

    @property
    def is_right(self) -> bool:
        """Whether its seconds are."""
        if self.cause is None:
            return self.is_named
        return abs(seconds(self.why, self.cause) - self.truth) <= WITHIN * self.truth


Draw = random.Random
Injection = Callable[[Machine, Draw], float]
"""Between a request's prompt and its end; gives the seconds that it put there."""


def answered(machine: Machine, draw: Draw) -> None:
    machine.answer(draw.randrange(20, 60))


def nothing(machine: Machine, draw: Draw) -> float:
    machine.answer(draw.randrange(100, 300))
    return 0.0


def others_prompts(machine: Machine, draw: Draw) -> float:
    size, total = draw.randrange(100, 400), 0.0
    for i in range(draw.randrange(100, 250)):
        total += TRUE.chunk_seconds(size, 0) if i % 2 else 0.0
        machine.step((1,), ((20, 0, size),) if i % 2 else ())
    return total


def others_answers(machine: Machine, draw: Draw) -> float:
    n, others = draw.randrange(100, 250), tuple(range(10, 10 + draw.randrange(2, 4)))
    machine.answer(n, beside=others)
    return n * len(others) * TRUE.chunk_seconds(1, N_PROMPT)


def machine_of_others(machine: Machine, draw: Draw) -> float:
    slower, began = draw.uniform(1.3, 2.5), machine.now
    machine.answer(draw.randrange(100, 250), slower=slower)
    return (machine.now - began) * (1 - 1 / slower)


def preemption(machine: Machine, draw: Draw) -> float:
    n = draw.randrange(20, 80)
    machine.answer(n)
    machine.mark("preempted", N_PROMPT + n)
    began = machine.now
    for _ in range(draw.randrange(30, 120)):
        machine.step((10, 11))
    machine.mark("started")
    machine.step((), ((1, 0, N_PROMPT + n),))
    gone = machine.now - began
    answered(machine, draw)
    return gone


def restart(machine: Machine, draw: Draw) -> float:
    n = draw.randrange(20, 80)
    machine.answer(n)
    began = machine.now
    machine.now += draw.uniform(0.5, 3.0)
    machine.mark("queued", N_PROMPT)
    machine.now += draw.uniform(0.05, 0.5)
    machine.mark("started")
    machine.step((), ((1, 0, N_PROMPT + n),))
    gone = machine.now - began
    answered(machine, draw)
    return gone


def engine(machine: Machine, draw: Draw) -> float:
    total = 0.0
    for _ in range(draw.randrange(60, 120)):
        pause = draw.uniform(0.005, 0.02)
        machine.answer(1)
        machine.now += pause
        total += pause
    machine.answer(1)
    return total


INSIDE: dict[str, Injection] = {
    "others_prompts": others_prompts,
    "others_answers": others_answers,
    "machine": machine_of_others,
    "preemption": preemption,
    "restart": restart,
    "engine": engine,
}
WAITS = {"slots": slots, "blocks": blocks, "turn": turn}
BEFORE = ("grammar", "load", "before")
CAUSES: tuple[str | None, ...] = (*WAITS, *INSIDE, *BEFORE, "reader", None)


def inject(cause: str | None, seed: int) -> Told:
    """One request that ``cause`` delays; None: nothing does."""
    draw = random.Random(f"{cause} {seed}")
    machine = Machine(lambda: max(0.5, draw.gauss(1.0, JITTER)))
    machine.usual()
    machine.mark("queued", N_PROMPT)
    truth = WAITS[cause](machine) if cause in WAITS else 0.0
    machine.mark("started")
    machine.prompt()
    reading = Backpressure(lambda: machine.now)
    if cause in INSIDE:
        truth = INSIDE[cause](machine, draw)
    elif cause is None:
        nothing(machine, draw)
    else:
        answered(machine, draw)
    machine.mark("finished")
    if cause == "reader":
        truth = draw.uniform(0.5, 4.0)
        reading.begin()
        machine.now += truth
        reading.end()
        return Told(cause, truth, machine.why(unread=reading.after))
    if cause in BEFORE:
        truth = draw.uniform(0.5, 4.0)
        story = machine.timeline.story(1)
        assert story is not None
        compiled = truth if cause == "grammar" else 0.0
        begun = story.arrived - truth
        why = machine.why(received=begun, compile_seconds=compiled, loads=cause == "load")
        return Told(cause, truth, why)
    return Told(cause, truth, machine.why())


def counted(n_runs: int) -> dict[str, dict[str, int]]:
    """Of each cause how often it was named, and its seconds told, in so many runs."""
    found = {}
    for cause in CAUSES:
        told = [inject(cause, seed) for seed in range(n_runs)]
        named, right = sum(x.is_named for x in told), sum(x.is_right for x in told)
        found[cause or "nothing"] = {"runs": n_runs, "named": named, "seconds": right}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Which causes of slow answers are told.")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    results = counted(arguments.runs)
    for cause, n in results.items():
        print(f"{cause:16} named {n['named']} of {n['runs']}, seconds {n['seconds']}")
    if arguments.output is not None:
        document = {
            "kind": "why-causes",
            "command": command_line("python -m tests.why_runs"),
            "machine": fingerprint(),
            "results": results,
        }
        arguments.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
