"""The time of towers is no hang, and is not learned as that of tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kvasir.checkpoints.tower import read_tower
from kvasir.checkpoints.tower_weights import build_tower
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, RowOutput, SlotOpen, StepPlan, StepResult, TableChange
from kvasir.core.request import NO_DRAWS, EngineRequest
from kvasir.core.tiles import Canvas, Media, media_at
from kvasir.exec.canvas import TileRows
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.exec.media import MediaRows
from kvasir.exec.reference import ReferenceExecutor
from kvasir.formats.mapped import TensorTable
from kvasir.ir.pieces import PIECE_FLOPS, Doubles, TowerPieces
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.cost import CostModel
from kvasir.timing.towers import SLOW_FLOPS, TowerCosts
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_llava
from tests.seeing import Seeing
from tests.sizes import config_of
from tests.tiny_qwen_vl import qwen3_vl, write

IMAGE = media_at(2, 6, b"\0" * 6, 3)
PROMPT = tuple(range(1, 13))
SMALL: dict[str, object] = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "deepstack_visual_indexes": [5, 11, 17],
}


class Four(TowerPieces):
    """Every tile has four pieces, of which one takes a second on a slow machine."""

    def of_media(self, media: Media) -> Doubles:
        return np.full(4, SLOW_FLOPS)

    def n_bytes(self, media: Media) -> int:
        return 1


def four(tmp_path: Path) -> TowerCosts:
    source = open_model(tiny_llava.write(tiny_llava.llava_onevision(), tmp_path))
    return TowerCosts(Four.of(build_tower(read_tower(source, 64))))


def scheduler(towers: TowerCosts | None = None) -> Scheduler:
    config = replace(config_of(128, 4, 32, 32, 4), enable_prefix_caching=True)
    return Scheduler(config, costs=CostModel(towers=towers))


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


def ends(plan: StepPlan) -> list[int]:
    return [run.end for run in plan.towers]


def test_every_step_with_pieces_of_a_tower_tells_them(tmp_path: Path) -> None:
    """The text before an image first, then a piece a step while pieces are dear; when it is known
    that they are cheap, all that are left, and the tokens of the image."""
    made = scheduler(four(tmp_path))
    made.add(request(0, PROMPT[:8], IMAGE))
    plan, told = step(made)
    assert (len(plan.rows[0].tokens), ends(plan), told) == (2, [], 0.0)
    plan, told = step(made)
    assert (plan.rows, ends(plan), told) == ((), [1], 1.0)
    assert made.newest[0][0].id == 0, "who would be a suspect"
    plan, told = step(made, seconds=0.02, towers=0.01)
    assert (plan.rows, ends(plan), told) == ((), [2], 1.0)
    plan, told = step(made)
    assert (len(plan.rows[0].tokens), ends(plan), told) == (6, [4], 2.0)
    step(made)
    made.add(request(1, PROMPT[:8], IMAGE))
    plan, told = step(made)
    assert plan.rows[-1].start == 4, "a hit that ends inside the image, whose rows are there"
    assert (ends(plan), told) == ([], 0.0)
    made.forget_media()
    made.add(request(2, PROMPT[:8], IMAGE))
    assert ends(step(made)[0]) == [4]
    step(made)
    made.forget_media()
    made.add(request(3, PROMPT, IMAGE))
    plan, told = step(made)
    assert (plan.rows[-1].start, ends(plan), told) == (8, [], 0.0), "a hit behind it"


def test_who_goes_on_with_an_image_and_who_begins_another(tmp_path: Path) -> None:
    """One tile at a time: who wants another waits, who wants the same waits for it, and what
    nobody wants any more is left."""
    made = scheduler(four(tmp_path))
    other = media_at(0, 6, b"\1" * 6, 3)
    image = replace(IMAGE, start=0)
    made.add(request(0, PROMPT[:8], image))
    made.add(request(1, PROMPT[:7], other))
    made.add(request(2, PROMPT[:9], image))
    plans = [step(made)[0] for _ in range(2)]
    assert [(x.towers[0].slot, x.towers[0].digest) for x in plans] == [(0, image.digest)] * 2
    made.cancel(0)
    plan, _ = step(made)
    assert (plan.towers[0].digest, ends(plan)) == (other.digest, [1])
    made.cancel(1)
    plans = [step(made)[0] for _ in range(4)]
    assert [ends(plan) for plan in plans] == [[1], [2], [3], [4]]
    assert {plan.towers[0].digest for plan in plans} == {image.digest}
    assert [len(row.tokens) for row in plans[-1].rows] == [9]


def test_a_tenant_pays_for_towers(tmp_path: Path) -> None:
    made = scheduler(four(tmp_path))
    made.add(request(0, PROMPT[:8], replace(IMAGE, start=0)))
    step(made, seconds=3.0, towers=2.5)
    (running,) = made.running
    assert running.drafting.owed == 2.5


def test_costs_are_learned_as_without_images(tmp_path: Path) -> None:
    seeing, blind = scheduler(four(tmp_path)), scheduler()
    seeing.add(request(0, PROMPT[:8], replace(IMAGE, start=0)))
    for _ in range(3):  # without a token
        step(seeing, seconds=2**-3, towers=2**-3)
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
    pieces = TowerPieces.of(build_tower(read_tower(source, 0)))
    flops = pieces.of_media(media_at(0, 4096, b"", 64))
    assert sum(flops) / 1e12 == pytest.approx(teraflop, rel=0.05)
    assert max(flops) <= PIECE_FLOPS
    assert sum(pieces.of_media(media_at(0, 1024, b"", 32))) < sum(flops) / 4


def test_a_canvas_takes_as_long_as_its_tiles(tmp_path: Path) -> None:
    source = open_model(tiny_llava.write(tiny_llava.llava_onevision(), tmp_path))
    tile = read_tower(source, 64).tile
    pieces = TowerPieces.of(build_tower(read_tower(source, 64)))
    one = media_at(0, tile.n_tokens, bytes(tile.n_bytes))
    six = media_at(0, 30, bytes(6 * tile.n_bytes), 10, canvas=Canvas(3, 2))
    newline = pieces.programs[-1].flops(np.ones(1, np.int32)).sum()
    assert sum(pieces.of_media(six)) == pytest.approx(newline + 6 * sum(pieces.of_media(one)))


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

    def slow(tile: Media) -> TileRows:
        time.sleep(0.5)
        return (yield from rows_of(tile))

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
