"""An engine that saves its blocks while it has nothing else to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvasir.core.groups import STATE_WINDOW, KVGroup
from kvasir.core.params import TokenParams
from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.engine.loop import EngineFault
from kvasir.exec.disk.directory import N_SEGMENTS, Limits
from kvasir.exec.disk.saving import block_sizes
from kvasir.exec.disk.store import DiskStore
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from tests.sizes import changed, config_of

SIZES = EngineSizes(97, 256, 4, 64, 32, 16)
CONFIG = config_of(256, 4, 64, 32, 16, enable_prefix_caching=True)


class BigBlocks(FakeExecutor):
    """Saves one block between two looks for requests."""

    def read_block(self, group: int, block: int) -> bytes:
        return super().read_block(group, block) + bytes(8 * 2**20)

    def write_block(self, group: int, block: int, data: bytes) -> None:
        super().write_block(group, block, data[: -8 * 2**20])


class Failing(FakeExecutor):
    def run(self, plan: StepPlan) -> StepResult:
        if plan.step == 3:
            raise RuntimeError("injected")
        return super().run(plan)


def engine_of(folder: Path, executor: FakeExecutor) -> tuple[Engine, DiskStore]:
    sizes = block_sizes(executor)
    disk = DiskStore(folder, Limits(N_SEGMENTS * (4096 + 2 * max(sizes)), sizes))
    return Engine(executor, Scheduler(CONFIG, disk=disk), disk=disk), disk


def finish(engine: Engine, prompt: range) -> int:
    """Cached tokens."""
    engine.add(EngineRequest(prompt.start, tuple(prompt), TokenParams(seed=0, max_tokens=1)))
    n_cached = 0
    while engine.has_work:
        n_cached += sum(event.n_cached for event in engine.step().events)
    return n_cached


def test_saving_is_done_in_parts_and_survives_a_reset(tmp_path: Path) -> None:
    engine, disk = engine_of(tmp_path, BigBlocks(SIZES))
    finish(engine, range(80))
    assert engine.save(), "there is more"
    engine.reset_prefix_cache()
    assert not engine.save()
    while engine.is_forgetting:
        disk.wait(0.01)
    assert (disk.stats.n_bytes, len(disk)) == (0, 0)
    finish(engine, range(80))
    n_parts = 1
    while engine.save():
        n_parts += 1
    assert n_parts >= 5
    engine.close()
    again, disk = engine_of(tmp_path, BigBlocks(SIZES))
    assert len(disk) == 5
    again.close()


def test_closing_saves_what_is_cached(tmp_path: Path) -> None:
    engine, _ = engine_of(tmp_path, FakeExecutor(SIZES))
    finish(engine, range(80))
    engine.close()
    again, disk = engine_of(tmp_path, FakeExecutor(SIZES))
    assert len(disk) == 5
    assert finish(again, range(80)) == 64
    again.close()


def test_states_come_back_from_disk(tmp_path: Path) -> None:
    """The snapshot at the end of the hit is all that is loaded of them."""
    states = (KVGroup(40, STATE_WINDOW, 64),)
    spec, config = replace(SIZES, windows=states), changed(CONFIG, windows=states)

    def answer(folder: Path) -> tuple[list[int], int]:
        executor = FakeExecutor(spec)
        sizes = block_sizes(executor)
        disk = DiskStore(folder, Limits(N_SEGMENTS * (4096 + 16 * max(sizes)), sizes))
        engine = Engine(executor, Scheduler(config, disk=disk), disk=disk)
        engine.add(EngineRequest(1, tuple(range(80)), TokenParams(seed=0, max_tokens=12)))
        events = [event for _ in range(500) if engine.has_work for event in engine.step().events]
        engine.close()
        tokens = [token for event in events for token in event.tokens]
        return tokens, sum(event.n_cached for event in events)

    cold, _ = answer(tmp_path / "cold")
    assert answer(tmp_path / "warm") == (cold, 0)
    assert answer(tmp_path / "warm") == (cold, 64)


def test_after_a_fault_nothing_is_saved(tmp_path: Path) -> None:
    """A block may be known whose load the failed step has not done."""
    engine, _ = engine_of(tmp_path, Failing(SIZES))
    finish(engine, range(80))
    with pytest.raises(EngineFault):
        finish(engine, range(100, 180))
    engine.close()
    again, disk = engine_of(tmp_path, FakeExecutor(SIZES))
    assert len(disk) == 0
    again.close()


def test_a_snapshot_comes_back_alone_where_memory_has_the_rest(tmp_path: Path) -> None:
    """Others' snapshots have taken its place; keys and values have room enough."""
    states = (KVGroup(3, STATE_WINDOW, 64),)
    executor = FakeExecutor(replace(SIZES, vocab_size=2000, n_blocks=200, windows=states))
    sizes = block_sizes(executor)
    disk = DiskStore(tmp_path, Limits(N_SEGMENTS * (4096 + 16 * max(sizes)), sizes))
    config = changed(CONFIG, vocab_size=2000, n_blocks=200, windows=states)
    engine = Engine(executor, Scheduler(config, disk=disk), disk=disk)
    for first in range(0, 1000, 200):
        finish(engine, range(first, first + 160))
    while disk.stats.n_stored < 1:
        disk.wait(0.01)
    n_loaded = disk.stats.n_loaded
    assert finish(engine, range(170)) == 160
    assert disk.stats.n_loaded == n_loaded + 1
    engine.close()
