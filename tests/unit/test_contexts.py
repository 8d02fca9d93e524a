"""Requests of different contexts share no KV entries, whatever the difference and the way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from kvasir.core.errors import RequestError
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepPlan, StepResult
from kvasir.core.request import PLAIN, Context, EngineRequest
from kvasir.core.tiles import Media, TileSpec, media_at
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from tests.sizes import changed, config_of
from tests.unit.test_disk_tier import MemoryDisk, finish

PROMPT = tuple(range(80))
PARAMS = TokenParams(seed=0, max_tokens=4)
CONFIG = config_of(
    max_model_len=256, max_num_seqs=4, max_num_batched_tokens=256, n_blocks=8, block_size=16
)
ROOMY = changed(CONFIG, n_blocks=24)
OTHERS = [Context("salt"), Context(adapter="adapter")]
WANTED = [(PLAIN, True), *((other, False) for other in OTHERS)]


def ask(
    i: int, context: Context, prompt: Sequence[int] = PROMPT, parent: int = -1, hold: float = 0.0
) -> EngineRequest:
    return EngineRequest(i, tuple(prompt), PARAMS, context, parent=parent, hold_seconds=hold)


def begin(made: Scheduler, request: EngineRequest, disk: MemoryDisk | None = None) -> int:
    """Tokens of ``request``, the newest, that are not computed."""
    made.add(request)
    plan = step(made)
    for load in plan.loads if disk is not None else ():
        del disk.staged[load.name]
    return plan.rows[-1].start


def step(made: Scheduler) -> StepPlan:
    plan = made.plan()
    assert plan is not None
    made.commit(plan, StepResult((RowOutput(7),) * plan.n_logits))
    return plan


@pytest.mark.parametrize(("context", "is_shared"), WANTED)
def test_what_is_cached(context: Context, is_shared: bool) -> None:
    made = Scheduler(changed(ROOMY, enable_prefix_caching=True))
    finish(made, MemoryDisk(), ask(1, PLAIN))
    assert bool(begin(made, ask(2, context))) == is_shared


@pytest.mark.parametrize(("context", "is_shared"), WANTED)
def test_what_a_running_parent_has(context: Context, is_shared: bool) -> None:
    made = Scheduler(ROOMY)
    assert not begin(made, ask(1, PLAIN))
    assert bool(begin(made, ask(2, context, parent=1))) == is_shared


@pytest.mark.parametrize(("context", "is_shared"), WANTED)
def test_what_is_held(context: Context, is_shared: bool) -> None:
    made = Scheduler(ROOMY)
    finish(made, MemoryDisk(), ask(1, PLAIN, hold=60.0))
    assert bool(begin(made, ask(2, context, parent=1))) == is_shared


@pytest.mark.parametrize(("context", "is_shared"), WANTED)
def test_what_disk_has(context: Context, is_shared: bool) -> None:
    disk = MemoryDisk()
    made = Scheduler(changed(CONFIG, enable_prefix_caching=True), disk=disk)
    finish(made, disk, ask(1, PLAIN))
    plans = finish(made, disk, ask(2, PLAIN, range(100, 220)), ask(3, context))
    assert disk.blocks
    assert any(plan.loads for plan in plans) == is_shared


@pytest.mark.parametrize("context", OTHERS[1:])
def test_an_engine_without_adapters_refuses_them(context: Context) -> None:
    engine = Engine(FakeExecutor(ROOMY.sizes), Scheduler(ROOMY))
    with pytest.raises(RequestError, match="no adapters"):
        engine.add(ask(1, context))
    engine.add(ask(2, OTHERS[0]))


def test_an_engine_without_a_tower_refuses_images() -> None:
    engine = Engine(FakeExecutor(ROOMY.sizes), Scheduler(ROOMY))
    image = media_at(0, 4, bytes(3))
    with pytest.raises(RequestError, match="no images"):
        engine.add(structs.replace(ask(1, PLAIN), media=(image,)))


@pytest.mark.parametrize(
    "images",
    [
        (media_at(0, 4, bytes(11)),),
        (media_at(0, 3, bytes(12)),),
        (media_at(77, 4, bytes(12)),),
        (media_at(0, 4, bytes(12)), media_at(3, 4, bytes(12))),
        (media_at(-1, 4, bytes(12)),),
    ],
    ids=["pixels", "tokens", "behind", "overlap", "before"],
)
def test_an_engine_refuses_images_that_do_not_fit(images: tuple[Media, ...]) -> None:
    tile = TileSpec(2, 1, 1, 1.0, (0.0,) * 3, (1.0,) * 3)
    engine = Engine(FakeExecutor(ROOMY.sizes), Scheduler(ROOMY), tile=tile)
    with pytest.raises(RequestError, match="a tile has 12, and 4 tokens"):
        engine.add(structs.replace(ask(1, PLAIN), media=images))
