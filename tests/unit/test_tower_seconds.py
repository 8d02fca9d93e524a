"""The time of towers is no hang, and is not learned as that of tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, RowOutput, SlotOpen, StepPlan, StepResult, TableChange
from kvasir.core.request import NO_DRAWS, EngineRequest
from kvasir.core.tiles import Canvas, Media, media_at
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.exec.media import Floats, MediaRows
from kvasir.exec.reference import ReferenceExecutor
from kvasir.formats.mapped import TensorTable
from kvasir.models.tower import read_tower
from kvasir.models.tower_programs import build_tower
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.cost import CostModel
from kvasir.timing.towers import SLOW_FLOPS, TowerPrior
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_llava
from tests.seeing import Seeing
from tests.sizes import config_of
from tests.tiny_qwen_vl import qwen3_vl, write

PRIOR = TowerPrior(row=1.0, pair=0.0, near=0.0, n_near=0, n_folded=4, n_first=0)
IMAGE = media_at(2, 6, b"\0" * 6, 3)
PROMPT = tuple(range(1, 13))
SMALL: dict[str, object] = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "deepstack_visual_indexes": [5, 11, 17],
}


def scheduler() -> Scheduler:
    config = replace(config_of(128, 4, 32, 32, 4), enable_prefix_caching=True)
    return Scheduler(config, costs=CostModel(tower=PRIOR))


def step(made: Scheduler, *, seconds: float = 0.0, towers: float = 0.0) -> tuple[StepPlan, float]:
    """A plan that runs, and the seconds of towers that were told of it."""
    plan = made.plan()
    assert plan is not None
    told = made.newest[3]
    outputs = (RowOutput(7),) * plan.n_logits
    made.commit(plan, StepResult(outputs, seconds, tower_seconds=towers))
    return plan, told


def request(number: int, prompt: tuple[int, ...], *media: Media) -> EngineRequest:
    return EngineRequest(number, prompt, TokenParams(seed=1, max_tokens=2), media=media)


def test_every_step_with_tokens_of_an_image_tells_its_tower() -> None:
    made = scheduler()
    made.add(request(0, PROMPT[:8], IMAGE))
    assert [step(made)[1] for _ in range(2)] == [24.0, 0.0]
    made.add(request(1, PROMPT[:8], IMAGE))
    plan, told = step(made)
    assert plan.rows[-1].start == 4, "a hit that ends inside the image"
    assert told == 24.0
    step(made)
    made.add(request(2, PROMPT, IMAGE))
    plan, told = step(made)
    assert plan.rows[-1].start == 8, "a hit behind it"
    assert told == 0.0


def test_costs_are_learned_as_without_images() -> None:
    seeing, blind = scheduler(), scheduler()
    seeing.add(request(0, PROMPT[:8], IMAGE))
    blind.add(request(0, PROMPT[:8]))
    for _ in range(2):  # near what is expected: surprises are all alike
        step(seeing, seconds=2**-7 + 2**-3, towers=2**-3)
        step(blind, seconds=2**-7)
    assert seeing.costs.costs == blind.costs.costs != CostModel().costs


@pytest.mark.parametrize(
    ("architecture", "patch", "vision", "teraflop"),
    [
        ("Qwen3VLForConditionalGeneration", 16, SMALL, 37),
        ("Qwen2_5_VLForConditionalGeneration", 14, {"hidden_size": 1280}, 26),
    ],
)
def test_what_the_largest_image_may_take(
    architecture: str, patch: int, vision: dict[str, object], teraflop: int, tmp_path: Path
) -> None:
    """Of towers of the released sizes; Qwen2.5-VL's has windows in all layers but four."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"patch_size": patch}))
    config = {"architectures": [architecture], "vision_config": vision}
    source = ModelSource(tmp_path, "hf", "bare", config, TensorTable({}))
    prior = TowerPrior.of(build_tower(read_tower(source, 0)))
    seconds = prior.seconds([media_at(0, 4096, b"", 64)])
    assert seconds * SLOW_FLOPS / 1e12 == pytest.approx(teraflop, rel=0.05)
    assert prior.seconds([media_at(0, 1024, b"", 32)]) < seconds / 4


def test_a_canvas_takes_as_long_as_its_tiles(tmp_path: Path) -> None:
    source = open_model(tiny_llava.write(tiny_llava.llava_onevision(), tmp_path))
    tile = read_tower(source, 64).tile
    prior = TowerPrior.of(build_tower(read_tower(source, 64)))
    one = media_at(0, tile.n_tokens, bytes(tile.n_bytes))
    six = media_at(0, 30, bytes(6 * tile.n_bytes), 10, canvas=Canvas(3, 2))
    assert prior.seconds([six]) == pytest.approx(6 * prior.seconds([one]))


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_executors_say_what_towers_took(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing = Seeing.open(write(qwen3_vl(), tmp_path), "float32", "f32")
    sizes = config_of(64, 1, 64, 4, 64, vocab_size=seeing.model.config.vocab_size).sizes
    executor: CpuExecutor | ReferenceExecutor
    executor = seeing.cpu(sizes) if name == "cpu" else seeing.reference(sizes)
    media = executor._media
    assert isinstance(media, MediaRows)
    rows_of = media._rows_of

    def slow(tile: Media) -> Floats:
        time.sleep(0.5)
        return rows_of(tile)

    monkeypatch.setattr(media, "_rows_of", slow)
    tile = seeing.tile(1, 3)
    prompt = (1,) * (tile.end + 1)
    opening = SlotOpen(0, NO_DRAWS, prompt, media=(tile,))
    table = TableChange(0, 0, 0, (0,))
    for i, opens in enumerate([(opening,), (opening,)]):
        result = executor.run(StepPlan(i, (Row(0, 0, prompt),), opens, (table,)))
        assert (result.tower_seconds >= 0.5) == (i == 0)
        assert result.seconds > result.tower_seconds
    executor.close()
