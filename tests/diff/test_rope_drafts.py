"""A draft program stands where the target does: behind images, whose tokens take fewer positions
than indices, and in the steps that follow inside the native call."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvasir.checkpoints import build_program
from kvasir.checkpoints.loaded import load_model
from kvasir.core.request import EngineRequest
from kvasir.core.tiles import media_at
from kvasir.exec.cpu.passes import lower_passes
from kvasir.ir.bundle import bundle
from kvasir.weights.bind import bind
from tests import tiny_qwen_vl
from tests.draft_variants import DRAFT_VARIANTS, Counted
from tests.exactness import Sizes, baseline, run
from tests.request_sets import make_requests
from tests.toy_bundle import Toy, lower_bundle


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """The draft is the target, a language model of Qwen's without a tower."""
    folder = tmp_path_factory.mktemp("toy")
    return made(tiny_qwen_vl.write(tiny_qwen_vl.qwen2_5_vl(), folder))


def made(folder: Path) -> Toy:
    model = load_model(str(folder))
    raw = build_program(replace(model.config, sees=False), max_positions=128)
    binding = bind(raw, model.source, lambda tensor: True)
    both, formats = bundle(raw, shared=raw.weights, draft=raw), binding.formats()
    alone = lower_passes(raw, dtype="float32", formats=formats)
    return Toy("equal", alone, lower_bundle(both, dtype="float32", formats=formats), binding)


def pictured(request: EngineRequest) -> EngineRequest:
    """With an image of 2 x 4 tokens, as far as positions go."""
    place = min(2 + request.id, len(request.prompt))
    tokens = (*request.prompt[:place], *(tiny_qwen_vl.IMAGE,) * 8, *request.prompt[place:])
    image = media_at(place, 8, bytes(8 * tiny_qwen_vl.UNIT**2 * 3), 4)
    return replace(request, prompt=tokens, media=(image,))


@pytest.mark.parametrize("index", [0, 1, 3, 5, 7])
def test_a_draft_that_is_the_target_is_always_right(toy: Toy, index: int, tmp_path: Path) -> None:
    folder = tiny_qwen_vl.write(tiny_qwen_vl.qwen2_5_vl(), tmp_path)
    tower = load_model(str(folder)).tower
    assert tower is not None
    sizes = Sizes(tiny_qwen_vl.VOCAB, max_model_len=128, tile=tower.tile)
    plain = make_requests(8, tiny_qwen_vl.IMAGE, seed=4, max_prompt=30, max_tokens=24)
    requests = [pictured(x) for x in plain]
    expected = baseline(toy.native_alone, requests, sizes).answers
    assert expected != baseline(toy.native_alone, plain, sizes).answers
    variant = DRAFT_VARIANTS[index]
    counted = Counted(toy.native)
    assert run(counted, requests, sizes, variant).answers == expected
    assert counted.n_accepted == counted.n_verified > 0
    if not index:
        drafts = Counted(toy.reference)
        answers = run(drafts, requests[:2], sizes, variant).answers
        assert {place: x.tokens for place, x in answers.items()} == {
            request.id: expected[request.id].tokens for request in requests[:2]
        }
        assert drafts.n_accepted == drafts.n_verified > 0
