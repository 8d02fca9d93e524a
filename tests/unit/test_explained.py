"""What made an answer slow is computed once, until its story changes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from kvasir.serve.client import AsyncClient
from kvasir.serve.explained import Explanations
from kvasir.serve.served import Served
from kvasir.serve.slices import Slices, Value, Work
from kvasir.timing.records import Mark, StepRecord
from kvasir.timing.timeline import Timeline


class Counting(Slices):
    n = 0

    async def run(self, work: Work[Value]) -> Value:
        self.n += 1
        return await super().run(work)


class Info:
    max_num_seqs = 4
    block_size = 16


class Client:
    def __init__(self) -> None:
        self.timeline = Timeline(max_steps=600, max_finished=3)
        self.slices = Counting()
        self.info = Info()
        self.n_steps = 0

    def steps(self, n: int, *decodes: int, seconds: float = 0.01) -> None:
        for _ in range(n):
            at = 0.01 * self.n_steps
            self.timeline.add(StepRecord(self.n_steps, at, seconds, decodes))
            self.n_steps += 1

    def mark(self, id: int, kind: str) -> None:
        self.timeline.add(Mark(id, 0.01 * self.n_steps, kind, 8))


def ask(client: Client, found: Explanations, served: Served) -> Any:
    return asyncio.run(found.choices(cast(AsyncClient, client), served))[0]


def served(id: int) -> Served:
    return Served(f"cmpl-{id}", id, 1, b"", "m")


def test_it_is_told_again_until_its_story_changes() -> None:
    client, found = Client(), Explanations()
    client.steps(100, 7)
    client.mark(1, "queued")
    client.mark(1, "started")
    client.steps(50, 1)
    early = ask(client, found, served(1))
    assert ask(client, found, served(1)) is early and client.slices.n == 1
    client.steps(50, 1)
    late = ask(client, found, served(1))
    assert late["seconds"] > early["seconds"] and client.slices.n == 2
    client.mark(1, "finished")
    done = ask(client, found, served(1))
    assert (done["state"], client.slices.n) == ("finished", 3)
    client.steps(1000, 7, seconds=0.02)  # its own steps are forgotten, and others were slower
    assert ask(client, found, served(1)) is done and client.slices.n == 3
    for other in (2, 3, 4):
        client.mark(other, "queued")
        client.mark(other, "finished")
    assert ask(client, found, served(1)) == {"index": 0, "state": "forgotten"}


def test_the_newest_are_kept() -> None:
    client, found = Client(), Explanations(limit=2)
    for id in (1, 2, 3):
        client.mark(id, "queued")
        client.steps(10, id)
        client.mark(id, "finished")
        ask(client, found, served(id))
    ask(client, found, served(3))
    ask(client, found, served(2))
    assert client.slices.n == 3
    ask(client, found, served(1))
    ask(client, found, served(2))
    assert client.slices.n == 4


def test_steps_beside_a_life_are_the_newest_before_and_after() -> None:
    client = Client()
    client.steps(20, 7)
    client.mark(1, "queued")
    client.steps(30, 1)
    client.mark(1, "finished")
    client.steps(5, 7)
    numbers = [step.step for step in client.timeline.beside(1, 8)]
    assert numbers == [17, 18, 19, 50, 51, 52, 53, 54]
    client.steps(10, 7)
    assert [step.step for step in client.timeline.beside(1, 8)] == list(range(57, 65))
    assert [step.step for step in client.timeline.beside(99, 2)] == [63, 64]
    assert [step.step for step in client.timeline.steps_of(1, 3)] == [47, 48, 49]
    assert len(client.timeline.steps_of(1)) == 30


def test_what_a_first_token_waited_for() -> None:
    """Of a request whose end was slowed by something else."""
    client = Client()
    client.steps(100, 7)
    client.mark(1, "queued")
    client.steps(100, -4, -3, -2, -1)
    client.mark(1, "started")
    came = 0.01 * client.n_steps + 0.01
    client.steps(200, 1, seconds=0.01)
    client.steps(200, 1, seconds=0.1)
    client.mark(1, "finished")
    found = Explanations()
    told = asyncio.run(found.before(cast(AsyncClient, client), served(1), came))
    assert told["cause"] == "slots" and 1.0 <= told["seconds"] <= 1.02
    assert ask(client, found, served(1))["cause"] == "machine"
    gone = asyncio.run(found.before(cast(AsyncClient, client), served(5), came))
    assert gone == {"index": 0, "state": "forgotten"}


def test_who_ended_in_the_queue_waited() -> None:
    client = Client()
    client.mark(1, "queued")
    client.steps(100, -4, -3, -2, -1)
    client.mark(1, "finished")
    told = ask(client, Explanations(), served(1))
    assert (told["cause"], told["seconds"]) == ("slots", 1.0)
