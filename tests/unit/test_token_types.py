"""Pairs of texts, on models that tell their tokens apart: whenever a slot's row comes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvasir.core.plan import StepPlan
from kvasir.core.request import NO_DRAWS, EngineRequest, Standing
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.exec.base import Executor
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.reference import ReferenceExecutor, load_weights
from kvasir.ir.pool import with_pool
from kvasir.sched.scheduler import Scheduler
from tests import tiny, tiny_encoders
from tests.loading import load
from tests.native import BEST
from tests.sizes import config_of

CONFIG = config_of(64, 4, 32, 16, 16, vocab_size=tiny.VOCAB, whole_prompts=True)
TEXTS = {i: tuple((7 * i * j + 3 * j + i) % 90 + 3 for j in range(20 - i)) for i in range(4)}


class Watched(Scheduler):
    """Counts slots that are opened in a plan that has no row of theirs."""

    n_early = 0

    def plan(self) -> StepPlan | None:
        plan = super().plan()
        if plan is not None:
            rows = {row.slot for row in plan.rows}
            self.n_early += sum(opening.slot not in rows for opening in plan.opens)
        return plan


def executor(name: str, folder: Path, sizes: EngineSizes) -> Executor:
    if name == "fake":
        return FakeExecutor(sizes)
    model = load(tiny.write_hf(tiny_encoders.bert(), folder), "float32")
    bundle = with_pool(model.program)
    if name == "cpu":
        return CpuExecutor(bundle, model.binding, sizes, CpuSettings(1, BEST))
    return ReferenceExecutor(bundle, load_weights(bundle, model.binding), sizes)


@pytest.mark.parametrize("name", ["fake", "cpu", "reference"])
def test_urgent_pairs_begin_in_a_step_that_has_no_room_for_them(name: str, tmp_path: Path) -> None:
    """The last one that starts before its turn finds the budget spent: its row comes later."""
    scheduler = Watched(CONFIG)
    engine = Engine(executor(name, tmp_path, CONFIG.sizes), scheduler)

    def vectors(priority_class: str, *ids: int, second: int = 8) -> dict[int, bytes]:
        standing = Standing(priority_class)  # type: ignore[arg-type]
        for i in ids:
            request = EngineRequest(i, TEXTS[i], NO_DRAWS, standing=standing, pooling="cls")
            engine.add(replace(request, second=second))
        found: dict[int, bytes] = {}
        while engine.has_work:
            found |= {event.id: event.vector for event in engine.step().events if event.finish}
        return found

    alone = {i: vectors("standard", i)[i] for i in TEXTS}
    assert scheduler.n_early == 0
    assert vectors("realtime", *TEXTS) == alone
    assert scheduler.n_early > 0
    assert vectors("standard", 0, second=0)[0] != alone[0]
    engine.close()
