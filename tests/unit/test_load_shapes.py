"""R118 to R120, in virtual time: arrivals of many a shape, at the queue that a server has before
its scheduler."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from kvasir.core.errors import CapacityError
from kvasir.core.request import EngineRequest
from kvasir.serve.admission import Admission
from tests.sharing import Load, request, sizes

N_SLOTS, N_PROMPT = 8, 32
N_OUTPUTS = (8, 120)
"""The fewest and the most tokens that a request asks for."""
QUEUE = 16
"""Choices that may wait: two for each place."""
IN_TIME = 2.0
"""Seconds to the first token that are in time: a full queue starts within these."""
STEP = 0.04
"""Seconds of the longest step: an arrival is seen at its end."""
Phase = tuple[float, float]
"""Requests per second, for so many seconds."""


def asked(i: int) -> EngineRequest:
    return request(i, N_PROMPT, random.Random(i).randint(*N_OUTPUTS))


@cache
def capacity() -> float:
    """Requests per second of an engine that never lacks any."""
    load = Load(sizes(n_slots=N_SLOTS))
    load.add(asked(i) for i in range(200))
    load.run()
    return 200 / load.now


def poisson(phases: tuple[Phase, ...], seed: int) -> Iterator[float]:
    """Times of arrival."""
    draw, begin = random.Random(seed), 0.0
    for rate, seconds in phases:
        now = begin + draw.expovariate(rate)
        while now < begin + seconds:
            yield now
            now += draw.expovariate(rate)
        begin += seconds


@dataclass
class Service:
    """A scheduler behind the bounds of its queue."""

    load: Load = field(default_factory=lambda: Load(sizes(n_slots=N_SLOTS)))
    due: dict[int, float] = field(default_factory=dict)
    """When each request came that was taken."""
    told: list[tuple[float, float]] = field(default_factory=list)
    """Of the refused: when, and the seconds that were told."""
    room: list[float] = field(default_factory=list)
    """When the queue had room again for each of them."""

    def run(self, arrivals: Iterator[float]) -> None:
        """Until the last is answered."""
        times = list(arrivals)[::-1]
        while times or self.load.scheduler.has_work:
            if not self.load.scheduler.has_work:
                self.load.now = max(self.load.now, times[-1])
            while times and times[-1] <= self.load.now:
                self._arrive(times.pop())
            self.load.step()
            self._look()
        self.load.scheduler.check()

    def _arrive(self, when: float) -> None:
        """At the end of the step in which it came."""
        name = len(self.due) + len(self.told)
        try:
            self._check()
        except CapacityError as full:
            assert full.code == "queue_full" and full.status == 429
            assert full.retry_after is not None
            self.told.append((self.load.now, full.retry_after))
            return
        self.due[name] = when
        self.load.add([asked(name)])

    def _check(self) -> None:
        stats = self.load.scheduler.stats()
        admission = Admission(QUEUE, 10**6, n_sent=len(self.due), tokens_sent=0)
        admission.check(stats, N_SLOTS, 1, N_PROMPT)

    def _look(self) -> None:
        if len(self.room) == len(self.told):
            return
        try:
            self._check()
        except CapacityError:
            return
        self.room += [self.load.now] * (len(self.told) - len(self.room))

    def waits(self) -> list[float]:
        """Seconds to the first token, ascending."""
        return sorted(self.load.first_token[i] - when for i, when in self.due.items())

    def goodput(self, seconds: float) -> float:
        """Answers whose first token came in time, per second."""
        return sum(wait <= IN_TIME for wait in self.waits()) / seconds


def served(*phases: Phase, seed: int = 1) -> Service:
    service = Service()
    service.run(poisson(phases, seed))
    assert service.load.ended.keys() == service.due.keys(), "whoever is taken is answered"
    return service


def p99(values: list[float]) -> float:
    return values[len(values) * 99 // 100]


def test_r118_a_steady_load_is_served_in_time() -> None:
    """At 0.8 of what the engine can do, where queues are long now and then."""
    alone = served((0.05 * capacity(), 25.0)).waits()
    for share, factor in ((0.5, 4), (0.8, 12)):
        steady = served((share * capacity(), 25.0))
        assert not steady.told
        waits = steady.waits()
        assert p99(waits) < IN_TIME and waits[len(waits) // 2] < factor * alone[len(alone) // 2]


def test_r119_a_burst_of_twenty_times_is_refused_in_part_and_leaves_nothing() -> None:
    usual = 0.5 * capacity()
    burst = served((usual, 2.0), (20 * usual, 5.0), (usual, 5.0))
    assert burst.waits()[-1] < IN_TIME
    refused = [when for when, _ in burst.told]
    assert refused and min(refused) > 2.0 and max(refused) < 7.0 + IN_TIME
    n_burst = sum(2.0 <= when < 7.0 for when in burst.due.values())
    assert n_burst > 0.95 * 5.0 * capacity(), "what the engine can do is taken"
    late = [burst.load.first_token[i] - t for i, t in burst.due.items() if t > 7.0 + IN_TIME]
    assert late and max(late) < IN_TIME / 2, "the queue is short again"


def test_r119_the_refused_are_told_when_there_is_room() -> None:
    """To a step: arrivals are seen at the end of one."""
    burst = served((10 * capacity(), 2.0))
    assert len(burst.told) == len(burst.room) > 100
    for (when, told), room in zip(burst.told, burst.room, strict=True):
        truth = room - when
        assert told / 2 - STEP <= truth <= 2 * told + STEP


def test_r120_beyond_the_knee_the_goodput_stays() -> None:
    shares = (0.3, 0.6, 0.9, 1.2, 2.0, 4.0)
    found = [served((share * capacity(), 15.0)).goodput(15.0) for share in shares]
    best = max(found)
    assert found[:3] == sorted(found[:3]) and found[0] < 0.4 * best
    assert all(each >= 0.9 * best for each in found[3:])
