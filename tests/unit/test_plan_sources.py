"""What a plan reads stays as it was until the plan has read it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepResult
from kvasir.core.request import EngineRequest, Standing
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.exec.disk.directory import N_SEGMENTS, Limits
from kvasir.exec.disk.saving import block_sizes
from kvasir.exec.disk.store import DiskStore
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from tests.sizes import config_of

SIZES = (256, 4, 64, 7, 16)
"""Seven blocks of 16 tokens."""


def prompt(seed: int, n: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(97), k=n))


CACHED = prompt(1, 33)
HELD = prompt(2, 33)
PART = (*CACHED[:24], *prompt(3, 4))
"""Begins with a block and a half of what is cached."""
SAVED = prompt(4, 49)


class Run:
    """An engine that keeps its blocks in a folder."""

    def __init__(self, folder: Path, *, overlap: bool) -> None:
        executor = FakeExecutor(EngineSizes(97, *SIZES))
        sizes = block_sizes(executor)
        self.disk = DiskStore(folder, Limits(N_SEGMENTS * (4096 + 4 * max(sizes)), sizes))
        config = config_of(*SIZES, enable_prefix_caching=True)
        self.scheduler = Scheduler(config, disk=self.disk)
        self.engine = Engine(executor, self.scheduler, overlap=overlap, disk=self.disk)
        self.tokens: dict[int, list[int]] = {}

    def add(self, i: int, tokens: tuple[int, ...], priority: int = 0, hold: float = 0.0) -> None:
        params = TokenParams(seed=i, max_tokens=4)
        standing = Standing(priority=priority)
        self.engine.add(EngineRequest(i, tokens, params, standing=standing, hold_seconds=hold))

    def step(self) -> None:
        for event in self.engine.step().events:
            self.tokens.setdefault(event.id, []).extend(event.tokens)
        self.engine.check()

    def finish(self) -> dict[int, list[int]]:
        while self.engine.has_work:
            self.step()
        return self.tokens

    def close(self) -> None:
        while self.engine.save():
            pass
        self.engine.close()


def alone(folder: Path, i: int, tokens: tuple[int, ...]) -> list[int]:
    """In an engine that knows nothing."""
    run = Run(folder, overlap=False)
    run.add(i, tokens)
    answer = run.finish()[i]
    run.close()
    return answer


@pytest.mark.parametrize("overlap", [False, True])
def test_a_part_of_a_block_is_copied_before_a_load_takes_the_block(
    tmp_path: Path, overlap: bool
) -> None:
    """The one that hits inside a block starts first, and nobody else owns that block; the one that
    loads starts in the same plan, and needs a block more than are free."""
    right = alone(tmp_path / "part", 3, PART), alone(tmp_path / "kept", 4, SAVED)
    run = Run(tmp_path / "kept", overlap=overlap)
    run.add(1, CACHED)
    run.finish()
    run.add(2, HELD, hold=600.0)
    run.finish()
    run.add(4, SAVED)
    run.step()
    while run.scheduler.is_stalled:
        run.disk.wait(0.01)
    run.add(3, PART, priority=-1)
    answers = run.finish()
    assert (answers[3], answers[4]) == right
    assert run.engine.stats().prefix_hits == 24 + 48
    run.close()
    again = Run(tmp_path / "kept", overlap=overlap)
    again.add(3, PART)
    again.add(4, SAVED)
    answers = again.finish()
    assert (answers[3], answers[4]) == right
    assert again.engine.stats().prefix_hits == 16 + 48, "what was saved is found"
    again.close()


def test_a_part_is_computed_where_its_source_would_be_the_last_block(tmp_path: Path) -> None:
    """Six blocks of the request are fresh, and the seventh is what it would copy from."""
    run = Run(tmp_path / "run", overlap=False)
    run.add(1, CACHED[:17])
    run.finish()
    long = (*CACHED[:12], *prompt(5, 95))
    run.add(2, long)
    assert run.finish()[2] == alone(tmp_path / "alone", 2, long)
    assert run.engine.stats().prefix_hits == 0
    run.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_source_is_held_until_its_plan_is_committed(tmp_path: Path, overlap: bool) -> None:
    """Also when the one that it was copied for is cancelled meanwhile."""
    run = Run(tmp_path, overlap=overlap)
    run.add(1, CACHED)
    run.finish()
    run.add(3, PART)
    plan = run.scheduler.plan()
    assert plan is not None
    assert len(plan.copies) == 1
    assert run.scheduler.cancel(3)
    run.scheduler.check()
    stats = run.scheduler.stats()
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total - 2
    outputs = (RowOutput(7),) * plan.n_logits
    run.scheduler.commit(plan, StepResult(outputs))
    run.engine.check()
    stats = run.scheduler.stats()
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    run.close()
