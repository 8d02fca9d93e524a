"""A state machine over the whole engine: everything at once, and every answer is the one that the
request gets alone.

All of a run follows from its seed. ``python -m tests.engine_machine --help`` runs many.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from itertools import count
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace as with_fields

from kvasir.core.messages import TokenEvent
from kvasir.core.request import PLAIN, PRIORITY_CLASSES, Context, EngineRequest, Standing
from kvasir.engine.engine import Engine
from kvasir.exec.disk.directory import N_SEGMENTS, Limits
from kvasir.exec.disk.saving import block_sizes
from kvasir.sched.scheduler import Scheduler
from kvasir.text.beam import BeamSearchParams, Search
from kvasir.timing.timeline import Timeline
from tests.automaton import Ring
from tests.drafting import Moody
from tests.engine_world import (
    EOS,
    VOCAB,
    Clock,
    Contents,
    Drafter,
    Drawn,
    Oracle,
    Remembering,
    SteppedStore,
    make_config,
    make_params,
    make_prompt,
    make_world,
)
from tests.exactness import Answer, answer_of

MAX_OPEN = 14
MAX_IDLE = 900
"""Steps without news after which it is a livelock: more than all waits together take."""
MAX_REMEMBERED = 40
MEMORY = "/dev/shm"
"""Where folders cost no disk."""


class Asked:
    """A request, its right answer, and what came of it so far."""

    def __init__(self, request: EngineRequest, answer: Answer) -> None:
        self.request = request
        self.answer = answer
        self.events: list[TokenEvent] = []

    def tell(self, event: TokenEvent) -> None:
        """Raises AssertionError on the first token that it would not get alone."""
        self.events.append(event)
        got, want, request = answer_of(self.events), self.answer, self.request
        n = len(got.tokens)
        assert got.tokens == want.tokens[:n], (request, got.tokens, want.tokens)
        assert got.hashes == want.hashes[:n], (request, got.hashes, want.hashes)
        is_cut = event.finish == "cancelled" or (got.error_code or "").startswith("deadline")
        if event.finish is not None and not is_cut:
            assert got == want, (request, got, want)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for event in self.events for token in event.tokens)

    @property
    def n_scored(self) -> int:
        return sum(len(event.prompt_logprobs) for event in self.events)


class Beams:
    """The requests of a beam search, from one round to the next."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.round: list[Asked] = []
        self.held: list[int] = []


class Machine:
    def __init__(self, seed: int, folder: Path, misses: int | None = None) -> None:
        """``misses``: the executor drafts (``FakeExecutor``)."""
        self.misses = misses
        self.rng = random.Random(seed)
        self.world = make_world(self.rng, has_constraints=seed % 3 == 2, forces=seed % 6 == 5)
        self.jump_ahead = seed % 2 == 1
        self.drawn: Drawn = {}
        self.oracle = Oracle(self.world, self.drawn)
        self.folder = folder
        self.clock = Clock()
        self.contents = Contents(0 if misses is None else 8 * self.world.block_size)
        self.ids = count()
        self.open: dict[int, Asked] = {}
        self.recent: list[EngineRequest] = []
        self.told: list[tuple[int, ...]] = []
        self.answers: dict[int, tuple[int, ...]] = {}
        self.beams: list[Beams] = []
        self.held: list[int] = []
        self.n_idle = 0
        self.done: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        """An engine of other sizes over the same folder."""
        rng = self.rng
        config = make_config(self.world, rng, executor_drafts=self.misses is not None)
        executor = Remembering(
            config.sizes,
            self.drawn,
            nonfinite=self.world.nonfinite,
            seconds=lambda plan: 1e-3,
            misses=self.misses,
        )
        sizes = block_sizes(executor)
        n_bytes = N_SEGMENTS * (4096 + rng.choice((1, 2, 8)) * max(sizes))
        rate = rng.choice((1e3, 1e9, 1e9, 1e9))
        self.disk = None
        if rng.random() < 0.9:
            self.disk = SteppedStore(self.folder, Limits(n_bytes, sizes), rate, self.contents)
        proposer = Drafter(self.answers, rng) if self.misses is None else Moody()
        timeline = Timeline(self.clock)
        scheduler = Scheduler(config, proposer, timeline=timeline, disk=self.disk, clock=self.clock)
        executor.is_late = rng.random() < 0.5
        overlap, masks = rng.random() < 0.6, Ring(VOCAB)
        self.engine = Engine(
            executor,
            scheduler,
            overlap=overlap,
            disk=self.disk,
            masks=masks,
            jump_ahead=self.jump_ahead,
        )
        self.engine._masking._patience = inf  # a run follows from its seed, not from the clock

    def play(self) -> None:
        """One operation."""
        roll = self.rng.random()
        for share, operation in OPERATIONS:
            roll -= share
            if roll < 0:
                operation(self)
                self.done[operation.__name__] += 1
                return
        self.step()
        self.done["step"] += 1

    def step(self) -> None:
        self.clock.now += self.rng.choice((1e-4, 1e-3, 3e-3))
        if self.rng.random() < 0.1:
            self.work()
        had_work = self.engine.has_work
        events = self.engine.step().events
        self.engine.check()
        for event in events:
            self.tell(event)
        self.n_idle = 0 if events or not had_work else self.n_idle + 1
        assert self.n_idle < MAX_IDLE, f"no news of {list(self.open)} in {MAX_IDLE} steps"
        if not had_work:
            self.engine.save()

    def tell(self, event: TokenEvent) -> None:
        asked = self.open[event.id]
        asked.tell(event)
        if event.finish is None:
            return
        del self.open[event.id]
        self.done[event.error_code or event.finish] += 1
        if asked.request.hold_seconds:
            self.held.append(event.id)
        self.told = [*self.told[-MAX_REMEMBERED:], (*asked.request.prompt, *asked.tokens)]
        for beams in list(self.beams):
            if asked in beams.round:
                self.advance(beams)

    def ask(self) -> None:
        if len(self.open) >= MAX_OPEN:
            return
        if self.recent and self.rng.random() < 0.3:
            again = self.rng.choice(self.recent)
            self.submit(self.dress(again.prompt, again.params, again.context))
            return
        prompt = make_prompt(self.world, self.told, self.rng)
        context = Context(self.rng.choice(("", "", "", "other")))
        self.submit(self.dress(prompt, make_params(self.world, self.rng), context))

    def choices(self) -> None:
        """One prompt several times: the others fork from the first."""
        if len(self.open) >= MAX_OPEN:
            return
        prompt = make_prompt(self.world, self.told, self.rng)
        params = make_params(self.world, self.rng)
        first = self.dress(prompt, params, PLAIN)
        self.submit(first)
        for i in range(self.rng.randint(1, 4)):
            own = with_fields(params, seed=params.seed ^ i + 1)
            self.submit(with_fields(first, id=next(self.ids), params=own, parent=first.id))

    def swarm(self) -> None:
        """Several at a time, which go on after what was told before."""
        for _ in range(4):
            self.ask()

    def dress(self, prompt: tuple[int, ...], params: object, context: Context) -> EngineRequest:
        """With a standing, a parent, a hold and time limits that change no answer."""
        rng, now = self.rng, self.clock.now
        standing = Standing(
            priority=rng.choice((0, 0, -1, 1, 2)),
            priority_class=rng.choice(PRIORITY_CLASSES),
            tenant=rng.choice(("", "a", "b")),
        )
        hold_seconds, parent = rng.choice((0.0, 0.0, 0.02, 600.0)), -1
        if self.recent and rng.random() < 0.4:
            parent = rng.choice(self.recent).id
        if rng.random() < 0.1:
            standing = with_fields(standing, ttft_by=now + rng.expovariate(10))
        if rng.random() < 0.1:
            standing = with_fields(standing, answer_by=now + rng.expovariate(10))
        return EngineRequest(
            next(self.ids),
            prompt,
            params,
            context,
            standing,
            parent=parent,
            hold_seconds=hold_seconds,
        )

    def submit(self, request: EngineRequest) -> Asked:
        answer = self.oracle(request.prompt, request.params)
        asked = self.open[request.id] = Asked(request, answer)
        self.answers[request.id] = answer.tokens
        self.recent = [*self.recent[-MAX_REMEMBERED:], request]
        self.engine.submit((request,))
        return asked

    def beam(self) -> None:
        if len(self.beams) > 1:
            return
        prompt = make_prompt(self.world, self.told, self.rng)[: self.world.max_model_len - 8]
        params = BeamSearchParams(
            beam_width=self.rng.randint(2, 3), max_tokens=self.rng.randint(2, 6)
        )
        search = Search(prompt, params, (EOS,), Context(self.rng.choice(("", "other"))))
        beams = Beams(search)
        self.beams.append(beams)
        beams.round = [self.submit(request) for request in search.requests(self.ids)]

    def advance(self, beams: Beams) -> None:
        """When all of a round have ended the next one forks from them."""
        if any(asked.request.id in self.open for asked in beams.round):
            return
        parents, beams.held = beams.held, [asked.request.id for asked in beams.round]
        for request_id in parents:
            self.engine.release(request_id)
        news = [event for asked in beams.round for event in asked.events if event.tokens]
        if len(news) == len(beams.round) and all(event.finish == "length" for event in news):
            beams.search.grow(news)
            if beams.search.is_open:
                requests = beams.search.requests(self.ids)
                beams.round = [self.submit(request) for request in requests]
                return
        self.beams.remove(beams)
        for request_id in beams.held:
            self.engine.release(request_id)

    def cancel(self) -> None:
        if self.open:
            self.engine.cancel(self.rng.choice(list(self.open)))

    def release(self) -> None:
        if self.held:
            self.engine.release(self.held.pop(self.rng.randrange(len(self.held))))

    def reset(self) -> None:
        self.engine.reset_prefix_cache()

    def wait(self) -> None:
        self.clock.now += self.rng.expovariate(5)

    def work(self) -> None:
        if self.disk is not None:
            self.disk.work(self.rng.choice((1, 3, 20)))

    def rest(self) -> None:
        """Until all is answered; then nothing is held but by holds, and some of it is saved."""
        while self.open:
            self.step()
        while self.engine.has_work:
            self.step()
        while self.rng.random() < 0.9 and self.engine.save():
            pass

    def restart(self) -> None:
        """The engine goes, and a new one goes on with what was asked; its holds are lost."""
        if self.rng.random() < 0.5:
            self.rest()
        self.engine.close()
        self.start()
        for asked in list(self.open.values()):
            asked.request = with_fields(
                asked.request, emitted=asked.tokens, n_scored=asked.n_scored
            )
            self.engine.submit((asked.request,))

    def end(self) -> None:
        """To the last answer: nothing may be left behind."""
        self.rest()
        for request_id in self.held:
            self.engine.release(request_id)
        self.engine.reset_prefix_cache()
        stats = self.engine.stats()
        assert stats.blocks_free == stats.blocks_total, stats
        self.close()

    def close(self) -> None:
        self.engine.close()


OPERATIONS = (
    (0.06, Machine.ask),
    (0.02, Machine.swarm),
    (0.02, Machine.choices),
    (0.005, Machine.beam),
    (0.03, Machine.cancel),
    (0.02, Machine.release),
    (0.002, Machine.reset),
    (0.02, Machine.wait),
    (0.04, Machine.work),
    (0.003, Machine.rest),
    (0.003, Machine.restart),
)
"""How often each is done; all else are steps."""


def run(seed: int, n_operations: int, misses: int | None = None) -> Counter[str]:
    """What was done. Raises whatever goes wrong, with the seed and the operation as a note."""
    with TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as folder:
        machine = Machine(seed, Path(folder), misses)
        try:
            for _ in range(n_operations):
                machine.play()
            machine.end()
        except BaseException as error:
            error.add_note(f"seed {seed}, after {machine.done.total()} operations and endings")
            raise
        return machine.done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed to begin with")
    parser.add_argument("--operations", type=int, default=1_000_000, help="over all seeds")
    args = parser.parse_args()
    total: Counter[str] = Counter()
    began, per_seed = time.monotonic(), -(-args.operations // args.seeds)
    for i, seed in enumerate(range(args.first, args.first + args.seeds), start=1):
        total += run(seed, per_seed, 3 if seed % 4 == 3 else None)
        seconds = time.monotonic() - began
        print(f"seed {seed}: {i * per_seed} operations in {seconds:.0f} s", file=sys.stderr)
    print(dict(sorted(total.items())))


if __name__ == "__main__":
    main()
