"""One answer about an image, however it is computed: alone, among others, in chunks, cached,
forked, preempted, replayed, from disk, on every level."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.core.tiles import Media, media_at
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.exec.media import MediaSlots
from tests import tiny_qwen_vl, tiny_vision
from tests.disk_variants import DISK_VARIANTS
from tests.exactness import CACHE_VARIANTS, VARIANTS, Sizes, Variant, baseline, run
from tests.fork_variants import FORK_VARIANTS
from tests.native import LEVELS
from tests.request_sets import make_sharing_requests
from tests.seeing import Seeing
from tests.tiny import TinyModel

@dataclass(frozen=True, slots=True)
class SeeingModel:
    make: Callable[[], TinyModel]
    write: Callable[[TinyModel, Path], Path]
    vocab_size: int
    image: int


MODELS = {
    "smolvlm": SeeingModel(
        tiny_vision.smolvlm, tiny_vision.write, tiny_vision.VOCAB, tiny_vision.IMAGE
    ),
    "qwen3_vl": SeeingModel(
        tiny_qwen_vl.qwen3_vl, tiny_qwen_vl.write, tiny_qwen_vl.VOCAB, tiny_qwen_vl.IMAGE
    ),
}
PLACES = ((), (3,), (18,), (0, 18), (18, 19))
"""Of images in a prompt: at a block's border, inside one, at the beginning, side by side."""


class Case:
    def __init__(self, seeing: Seeing, model: SeeingModel) -> None:
        tower = seeing.model.tower
        assert tower is not None
        self.seeing, self.image = seeing, model.image
        self.sizes = Sizes(model.vocab_size, max_model_len=128, tile=tower.tile)
        rng = random.Random(5)
        self.requests: list[EngineRequest] = []
        for request in make_sharing_requests(32, model.image, seed=9, max_tokens=8):
            places = [x for x in rng.choice(PLACES) if x <= len(request.prompt)]
            seeds = [rng.randrange(3) for _ in places]
            self.requests.append(seeing.with_images(request, places, seeds, model.image))
        self.expected = baseline(seeing.cpu, self.requests, self.sizes).answers


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = MODELS[request.param]
    folder = model.write(model.make(), tmp_path_factory.mktemp("model"))
    return Case(Seeing.open(folder, "bfloat16", "bf16"), model)


CHOSEN = (
    *(VARIANTS[1], VARIANTS[4], VARIANTS[6], VARIANTS[12], VARIANTS[17], VARIANTS[18]),
    *(VARIANTS[22], VARIANTS[28], VARIANTS[29]),
    *(CACHE_VARIANTS[0], CACHE_VARIANTS[2], CACHE_VARIANTS[5], CACHE_VARIANTS[7]),
    *(CACHE_VARIANTS[10], CACHE_VARIANTS[14], CACHE_VARIANTS[17]),
    *(FORK_VARIANTS[0], FORK_VARIANTS[1], DISK_VARIANTS[1], DISK_VARIANTS[2]),
)


@pytest.mark.parametrize("variant", CHOSEN, ids=lambda variant: variant.name)
def test_answers_do_not_depend_on_how_they_are_computed(case: Case, variant: Variant) -> None:
    def make(sizes: EngineSizes) -> CpuExecutor:
        return case.seeing.cpu(sizes, threads=2)

    assert run(make, case.requests, case.sizes, variant, case.expected).answers == case.expected


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_gives_the_same_bits(case: Case, level: str) -> None:
    requests = case.requests[:6]
    got = run(lambda x: case.seeing.cpu(x, 2, level), requests, case.sizes, VARIANTS[6]).answers
    assert got == {request.id: case.expected[request.id] for request in requests}


def test_a_step_computes_one_tile_of_a_request(case: Case) -> None:
    """Whatever the budget: a tower may take as long as all else in a step."""
    counts: list[int] = []

    def make(sizes: EngineSizes) -> CpuExecutor:
        made, seen = case.seeing.cpu(sizes), MediaSlots()
        plain = made.run

        def run_one(plan: StepPlan) -> StepResult:
            counts.append(len(seen.of(plan)))
            return plain(plan)

        made.run = run_one  # type: ignore[method-assign, assignment]
        return made

    base = replace(case.requests[0], prompt=tuple(range(5, 30)), media=())
    images = case.seeing.with_images(base, [3, 4, 5], [1, 2, 3], case.image)
    run(make, [images], case.sizes, VARIANTS[0])
    assert counts[:4] == [1, 1, 1, 0]


def test_images_change_answers(case: Case) -> None:
    """Equal tokens, other pixels: with a prefix cache that holds the first answer's blocks."""
    base = next(x for x in case.requests if len(x.media) == 2)
    others = [
        replace(base, id=i, media=tuple(repainted(x, seed) for x in base.media))
        for i, seed in enumerate((11, 12, 11))
    ]
    alone = baseline(case.seeing.cpu, others, case.sizes).answers
    cached = run(case.seeing.cpu, others, case.sizes, CACHE_VARIANTS[0])
    assert cached.answers == alone
    assert alone[0] == alone[2] != alone[1]


def repainted(media: Media, seed: int) -> Media:
    pixels = random.Random(seed).randbytes(len(media.pixels))
    return media_at(media.start, media.n_tokens, pixels, media.columns)


def test_what_is_before_an_image_is_shared(case: Case) -> None:
    """The words before it, the part of a block included, and nothing of the image."""
    tokens = tuple(range(5, 45))
    base = replace(case.requests[0], prompt=tokens, media=())
    one, other = (
        replace(case.seeing.with_images(base, [21], [seed], case.image), id=i)
        for i, seed in enumerate((1, 2))
    )
    stats = run(case.seeing.cpu, [one, other], case.sizes, CACHE_VARIANTS[0]).stats
    assert stats.prefix_hits == 21
    same = run(case.seeing.cpu, [one, replace(one, id=7)], case.sizes, CACHE_VARIANTS[0]).stats
    n = len(one.prompt) // 16 * 16
    assert same.prefix_hits == n  # all full blocks, of which one has the end of the image
