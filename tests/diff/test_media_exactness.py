"""One answer about an image, however it is computed: alone, among others, in chunks, cached,
forked, preempted, replayed, from disk, on every level."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace as with_fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from msgspec import structs
from msgspec.structs import replace

from kvasir.core.messages import TokenEvent
from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.core.tiles import CHANNELS, Media, media_at
from kvasir.engine.engine import Engine
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.ir import pieces
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.cost import CostModel
from tests import (
    tiny_gemma4_vision,
    tiny_gemma_vision,
    tiny_internvl,
    tiny_llava,
    tiny_pixtral,
    tiny_qwen_vl,
    tiny_vision,
)
from tests.answers import answer_of
from tests.disk_variants import DISK_VARIANTS
from tests.exactness import CACHE_VARIANTS, VARIANTS, Sizes, Variant, baseline, run
from tests.fork_variants import FORK_VARIANTS
from tests.loading import sizes_for
from tests.native import LEVELS
from tests.request_sets import make_sharing_requests
from tests.seeing import Crawling, Seeing
from tests.sizes import config_of
from tests.tiny import TinyModel

PLACES = ((), (3,), (18,), (0, 18), (18, 19))
"""Of images in a prompt: at a block's border, inside one, at the beginning, side by side."""


class Model(NamedTuple):
    make: Callable[[], TinyModel]
    write: Callable[[TinyModel, Path], Path]
    vocab_size: int
    image: int
    """Token that stands for a row."""
    windows: tuple[int, ...] = ()


MODELS: Mapping[str, Model] = {
    "smolvlm": Model(tiny_vision.smolvlm, tiny_vision.write, tiny_vision.VOCAB, tiny_vision.IMAGE),
    "gemma3": Model(
        tiny_gemma_vision.gemma3_vision,
        tiny_gemma_vision.write,
        tiny_gemma_vision.VOCAB,
        tiny_gemma_vision.IMAGE,
        (8,),
    ),
    "gemma4": Model(
        tiny_gemma4_vision.gemma4_vision,
        tiny_gemma4_vision.write,
        tiny_gemma4_vision.VOCAB,
        tiny_gemma4_vision.IMAGE,
        (8,),
    ),
    "internvl": Model(
        tiny_internvl.internvl, tiny_internvl.write, tiny_internvl.VOCAB, tiny_internvl.IMAGE
    ),
    "llava": Model(
        tiny_llava.llava_onevision, tiny_llava.write, tiny_llava.VOCAB, tiny_llava.IMAGE
    ),
    "mistral3": Model(
        tiny_pixtral.mistral3, tiny_pixtral.write, tiny_pixtral.VOCAB, tiny_pixtral.IMAGE
    ),
    "qwen2_5_vl": Model(
        tiny_qwen_vl.qwen2_5_vl, tiny_qwen_vl.write, tiny_qwen_vl.VOCAB, tiny_qwen_vl.IMAGE
    ),
    "qwen3_vl": Model(
        tiny_qwen_vl.qwen3_vl, tiny_qwen_vl.write, tiny_qwen_vl.VOCAB, tiny_qwen_vl.IMAGE
    ),
    "qwen3_5_vl": Model(
        tiny_qwen_vl.qwen3_5_vl, tiny_qwen_vl.write, tiny_qwen_vl.VOCAB, tiny_qwen_vl.IMAGE
    ),
}


class Case:
    def __init__(self, seeing: Seeing, model: Model) -> None:
        tower = seeing.model.tower
        assert tower is not None
        self.seeing, self.image = seeing, model.image
        spans = tower.tile.n_tokens if seeing.model.config.block.spans else 0
        self.sizes = Sizes(
            model.vocab_size,
            max_model_len=128,
            tile=tower.tile,
            windows=model.windows,
            span_tokens=spans,
            state_bytes=sum(seeing.model.config.state_bytes),
            costs=lambda: CostModel(towers=Crawling(seeing.pieces)),
        )
        rng = random.Random(5)
        self.requests: list[EngineRequest] = []
        for request in make_sharing_requests(32, 320, seed=9, max_tokens=8):
            places = [x for x in rng.choice(PLACES) if x <= len(request.prompt)]
            seeds = [rng.randrange(3) for _ in places]
            self.requests.append(seeing.with_images(request, places, seeds, model.image))
        self.expected = baseline(seeing.cpu, self.requests, self.sizes).answers


def opened(name: str, folder: Path, dtype: str, kv_dtype: str) -> Seeing:
    model = MODELS[name]
    return Seeing.open(model.write(model.make(), folder), dtype, kv_dtype)


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    """So that phases of tiny towers have parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_FLOPS", 1.5e4)
        yield


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Case]:
    return {
        name: Case(opened(name, tmp_path_factory.mktemp(name), "bfloat16", "bf16"), model)
        for name, model in MODELS.items()
    }


@pytest.fixture(scope="module")
def case(cases: Mapping[str, Case]) -> Case:
    return cases["smolvlm"]


CHOSEN = (
    *(VARIANTS[1], VARIANTS[4], VARIANTS[6], VARIANTS[12], VARIANTS[17], VARIANTS[18]),
    *(VARIANTS[22], VARIANTS[28], VARIANTS[29]),
    *(CACHE_VARIANTS[0], CACHE_VARIANTS[2], CACHE_VARIANTS[5], CACHE_VARIANTS[7]),
    *(CACHE_VARIANTS[10], CACHE_VARIANTS[14], CACHE_VARIANTS[17]),
    *(FORK_VARIANTS[0], FORK_VARIANTS[1], DISK_VARIANTS[1], DISK_VARIANTS[2]),
)
FEW = (VARIANTS[12], CACHE_VARIANTS[5], FORK_VARIANTS[0])
TOGETHER = (
    *(VARIANTS[6], VARIANTS[9], VARIANTS[12], VARIANTS[18], VARIANTS[22]),
    *(CACHE_VARIANTS[2], CACHE_VARIANTS[5], CACHE_VARIANTS[7], CACHE_VARIANTS[16]),
    *(FORK_VARIANTS[0], DISK_VARIANTS[1]),
)
"""Of tokens that see each other: small budgets and paces, few blocks, and what begins inside."""


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *((name, x) for name in ("smolvlm", "qwen3_vl") for x in CHOSEN),
        *(("gemma3", x) for x in TOGETHER),
        *(("gemma4", x) for x in (TOGETHER[0], *TOGETHER[3:6], TOGETHER[9])),
        *(("qwen3_5_vl", x) for x in (VARIANTS[6], *CHOSEN[9:12], *CHOSEN[16:])),
        *((name, x) for name in ("internvl", "llava", "qwen2_5_vl") for x in FEW),
        *(("mistral3", x) for x in (VARIANTS[6], *FEW, DISK_VARIANTS[1])),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_answers_do_not_depend_on_how_they_are_computed(
    cases: Mapping[str, Case], name: str, variant: Variant
) -> None:
    case = cases[name]

    def make(sizes: EngineSizes) -> CpuExecutor:
        return case.seeing.cpu(sizes, threads=2)

    assert run(make, case.requests, case.sizes, variant, case.expected).answers == case.expected


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("level", LEVELS)
def test_every_level_gives_the_same_bits(cases: Mapping[str, Case], name: str, level: str) -> None:
    case = cases[name]
    requests = case.requests[:6]
    got = run(lambda x: case.seeing.cpu(x, 2, level), requests, case.sizes, VARIANTS[6]).answers
    assert got == {request.id: case.expected[request.id] for request in requests}


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_tiles_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    """Heads of 24 numbers are padded to 32; in f32 both add the same products in other orders."""
    seeing = opened(name, tmp_path, "float32", "f32")
    sizes = sizes_for(seeing.model.config, n_seqs=1)
    native, plain = seeing.cpu(sizes, threads=2), seeing.reference(sizes)
    tile = seeing.tile(0, 7)
    assert native._media is not None and plain._media is not None
    own, expected = native._media._rows(tile), plain._media._rows(tile)
    config = seeing.model.config
    assert own.shape == (tile.n_rows, config.hidden_size * (1 + config.deep_layers))
    assert np.abs(own - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("name", MODELS)
def test_pieces_give_the_bits_of_the_whole(cases: Mapping[str, Case], name: str) -> None:
    """As many as were foretold, on one thread and on two, and where others were begun between."""
    seeing = cases[name].seeing
    sizes = sizes_for(seeing.model.config, n_seqs=1)
    tile, other = seeing.tile(0, 7), seeing.tile(0, 8)
    flops = seeing.pieces.of_media(tile)
    assert len(flops) > 2 * sum(len(x.row) for x in seeing.pieces.programs)
    found = []
    for threads in (1, 2):
        media = seeing.cpu(sizes, threads)._media
        assert media is not None
        media._go_on(tile, len(flops) // 2 + 1)
        media._go_on(other, 2)
        for i in range(len(flops)):
            assert media.n_computed == 0
            media._go_on(tile, i + 1)
        assert media.n_computed == 1
        found.append(media._rows(tile))
        assert media.n_unforeseen == 0
        assert found[-1].nbytes == seeing.pieces.n_bytes(tile)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_FLOPS", 1e12)
        whole = seeing.cpu(sizes, 2)._media
    assert whole is not None
    found.append(whole._rows(tile))
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_segments_of_attention_outlast_pieces(
    cases: Mapping[str, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where many threads share few chunks, a chunk's segments lie in several pieces."""
    seeing, n = cases["mistral3"].seeing, 20
    assert seeing.model.tower is not None
    unit = seeing.model.tower.tile.unit
    image = media_at(0, n * n + n, random.Random(1).randbytes(CHANNELS * (n * unit) ** 2), n, 1)
    found = []
    for threads, flops in ((1, 1e15), (64, 3e6)):
        monkeypatch.setattr(pieces, "PIECE_FLOPS", flops)
        media = seeing.cpu(sizes_for(seeing.model.config, n_seqs=1), threads)._media
        assert media is not None
        found.append(media._rows(image))
    assert np.array_equal(*found)


@pytest.mark.parametrize("overlap", [False, True])
def test_an_answer_waits_for_one_piece_at_a_time(cases: Mapping[str, Case], overlap: bool) -> None:
    """A canvas of tiles takes a hundred steps, and each has a token of the answer under way."""
    case = cases["llava"]
    base = replace(case.requests[0], media=())
    params = replace(base.params, max_tokens=60, stop_ids=(), constraint="")
    answer = replace(base, id=0, prompt=(5, 6, 7), params=params)
    image = replace(base, id=1, prompt=(8, 9, 7), params=replace(params, max_tokens=4))
    image = case.seeing.with_images(image, [2], [1], case.image)
    assert image.media[0].canvas is not None
    config = config_of(128, 2, 64, 16, 16, vocab_size=case.sizes.vocab_size)
    executor = case.seeing.cpu(config.sizes, threads=2)
    plans, plain = list[StepPlan](), executor.run

    def run_one(plan: StepPlan) -> StepResult:
        plans.append(plan)
        result = plain(plan)  # whose steps take twice the target, whatever the machine does
        return structs.replace(result, seconds=0.02 + result.tower_seconds)

    executor.run = run_one  # type: ignore[method-assign, assignment]
    costs = CostModel(towers=Crawling(case.seeing.pieces))
    scheduler = Scheduler(replace(config, itl_target=0.01), costs=costs)
    engine = Engine(executor, scheduler, tile=case.sizes.tile, overlap=overlap)
    engine.add(answer)
    events = list(engine.step().events)
    engine.add(image)
    while engine.has_work:
        events += engine.step().events
    media = executor._media
    assert media is not None and (media.n_computed, media.n_unforeseen) == (1, 0)
    engine.close()
    running = [plan for plan in plans if plan.towers]
    ends = [plan.towers[-1].end for plan in running]
    assert ends[:50] == list(range(1, 51)) and {len(plan.towers) for plan in running} == {1}
    assert all(plan.rows[0].slot == 0 and len(plan.rows[0].tokens) == 1 for plan in running[:50])
    assert ends[-1] == len(case.seeing.pieces.of_media(image.media[0]))
    expected = baseline(case.seeing.cpu, [answer, image], case.sizes).answers
    for one in (answer, image):
        assert answer_of([x for x in events if x.id == one.id]) == expected[one.id]


def test_a_reset_has_rows_computed_again(case: Case) -> None:
    config = config_of(128, 1, 64, 16, 16, vocab_size=case.sizes.vocab_size)
    made = case.seeing.cpu(config.sizes)
    engine = Engine(made, Scheduler(config), tile=case.sizes.tile)
    request = next(x for x in case.requests if len({y.digest for y in x.media}) == 2)
    assert made._media is not None
    counts = []
    for i, resets in enumerate((False, False, True, False)):
        if resets:
            engine.reset_mm_cache()
        engine.add(replace(request, id=i))
        events = list[TokenEvent]()
        while engine.has_work:
            events += engine.step().events
        assert answer_of(events) == case.expected[request.id]
        counts.append(made._media.n_computed)
    engine.close()
    assert counts == [2, 2, 4, 4]


@pytest.mark.parametrize("name", MODELS)
def test_images_change_answers(cases: Mapping[str, Case], name: str) -> None:
    """Equal tokens, other pixels: with a prefix cache that holds the first answer's blocks."""
    case = cases[name]
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
    return media_at(media.start, media.n_tokens, pixels, media.columns, media.breaks, media.canvas)


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
    assert same.prefix_hits == 32  # both full blocks, of which the second ends with the image


def test_a_prefix_may_end_inside_an_image(cases: Mapping[str, Case]) -> None:
    """What is left of its tokens sees those that the cache has, and they were computed with it."""
    case = cases["gemma3"]
    base = replace(case.requests[0], prompt=tuple(range(5, 45)), media=())
    one = case.seeing.with_images(base, [14], [1], case.image)
    assert one.media[0].start < 16 < one.media[0].end
    both = [replace(one, id=0), replace(one, id=1, prompt=(*one.prompt[:20], 9, 8, 7))]
    alone = baseline(case.seeing.cpu, both, case.sizes).answers
    cached = run(case.seeing.cpu, both, case.sizes, CACHE_VARIANTS[0])
    assert cached.answers == alone
    assert cached.stats.prefix_hits == 16


@pytest.mark.parametrize("name", ["smolvlm", "gemma3", "qwen3_vl"])
def test_a_late_mask_behind_an_image(cases: Mapping[str, Case], name: str) -> None:
    """The last token of the image is computed again, as it was, into a block that others share."""
    case = cases[name]
    n = 32 - case.seeing.tile(0, 1).n_tokens
    base = replace(case.requests[0], id=0, prompt=tuple(range(5, 5 + n)), media=())
    base = replace(base, params=replace(base.params, constraint="7:3"))
    one = case.seeing.with_images(base, [n], [1], case.image)
    params = replace(base.params, constraint="")
    both = [one, replace(one, id=1, prompt=(*one.prompt, 7, 8, 9), params=params)]
    alone = baseline(case.seeing.cpu, both, case.sizes).answers
    late = run(case.seeing.cpu, both, case.sizes, with_fields(CACHE_VARIANTS[0], late_masks=True))
    assert late.stats.prefix_hits == 32
    assert late.answers == alone


def test_a_part_of_an_image_is_refused(cases: Mapping[str, Case]) -> None:
    """An engine that knows nothing of spans would give another answer: no executor computes it."""
    case = cases["gemma3"]
    base = replace(case.requests[0], prompt=tuple(range(5, 45)), media=())
    request = case.seeing.with_images(base, [21], [1], case.image)
    assert request.media[0].n_tokens == 4
    blind = with_fields(case.sizes, span_tokens=0)
    with pytest.raises(Exception, match="that see each other"):
        run(case.seeing.cpu, [request], blind, VARIANTS[5])
