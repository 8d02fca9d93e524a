"""A model of which some layers keep a state gives one answer, however it is computed.

Tokens of a state change it one after the other, and nothing takes one back: a chunk, a hit, a fork
or a block from disk that began anywhere but where the state is would show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from kvasir.engine import masking
from kvasir.exec.reference import ReferenceExecutor, load_weights
from tests import tiny, tiny_hybrid, tiny_kimi, tiny_scan, tiny_state
from tests.automaton import LATE
from tests.diff.test_native_exactness import Case
from tests.disk_variants import DISK_VARIANTS
from tests.draft_variants import SEEING_CACHED, SEEING_VARIANTS
from tests.drafting import Drafts
from tests.exactness import CACHE_VARIANTS, VARIANTS, Variant, baseline, run
from tests.fork_variants import FORK_VARIANTS
from tests.loading import load
from tests.native import LEVELS, native_logits
from tests.sharing_variants import SHARING_VARIANTS
from tests.tiny import TinyModel

MODELS: dict[str, Callable[[], TinyModel]] = {
    "lfm2": tiny_state.lfm2,
    "lfm2_moe": tiny_state.lfm2_moe,
    "mamba2": tiny_scan.mamba2,
    "granite_hybrid": tiny_scan.granite_hybrid,
    "qwen3_next": tiny_scan.qwen3_next,
    "qwen3_5": tiny_scan.qwen3_5,
    "qwen3_5_moe": tiny_scan.qwen3_5_moe,
    "kimi_linear": tiny_kimi.kimi_linear,
    "falcon_h1": tiny_hybrid.falcon_h1,
    "nemotron_h": tiny_hybrid.nemotron_h_moe,
}
PROMPT = tuple((17 * i * i + 5 * i + 3) % tiny.VOCAB for i in range(70))


def with_strides(*variants: Variant) -> tuple[Variant, ...]:
    """With snapshots after every block, every third or where they are of use alone."""
    return tuple(replace(x, stride=(16, 48, 0)[i % 3]) for i, x in enumerate(variants))


ALL_WRONG = frozenset(range(1, 10))
PLAIN = with_strides(
    *VARIANTS,
    *SHARING_VARIANTS,
    *SEEING_VARIANTS,
    Variant("chain drafts, all wrong", drafts=Drafts(4, wrong_depths=ALL_WRONG), overlap=True),
    Variant("tree drafts, all wrong", drafts=Drafts(8, 1, ALL_WRONG), n_spare_blocks=1),
)
CACHED = with_strides(*CACHE_VARIANTS, *SEEING_CACHED, *FORK_VARIANTS, *DISK_VARIANTS)


@pytest.fixture(scope="module", params=MODELS, ids=list(MODELS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    return Case(load(tiny.write_gguf_model(MODELS[request.param](), path, "Q8_0"), "auto"))


@pytest.mark.sampled(len(MODELS) + 1)
@pytest.mark.parametrize("variant", PLAIN, ids=lambda variant: variant.name)
@pytest.mark.parametrize("threads", [1, 2])
def test_answers_do_not_depend_on_how_they_are_computed(
    case: Case, threads: int, variant: Variant
) -> None:
    expected = case.expected.answers
    outcome = run(case.make(threads), case.requests, case.sizes, variant, expected)
    for request in case.requests:
        assert outcome.answers[request.id] == expected[request.id], request.params


@pytest.mark.sampled(len(MODELS))
@pytest.mark.parametrize("variant", CACHED, ids=lambda variant: variant.name)
def test_answers_do_not_depend_on_what_is_kept(case: Case, variant: Variant) -> None:
    expected = case.expected_of_sharing
    outcome = run(case.make(2), case.sharing, case.sizes, variant, expected)
    for request in case.sharing:
        assert outcome.answers[request.id] == expected[request.id], request.params
    # a parent of few blocks has given back the state that a fork would begin with
    assert outcome.stats.prefix_hits > 0 or (variant.forks and not variant.cache)


def test_a_late_mask_is_waited_for(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row without one would compute its newest token again, which a state has taken in."""
    monkeypatch.setattr(masking, "LATE_SECONDS", LATE / 10)
    requests = [
        structs.replace(one, params=structs.replace(one.params, constraint=("7:3", "6:5!")[i % 2]))
        for i, one in enumerate(case.requests[:8])
    ]
    expected = baseline(case.make(1), requests, case.sizes).answers
    overlapped = next(each for each in PLAIN if each.name == "overlapped")
    variant = replace(overlapped, late_masks=True)
    assert run(case.make(1), requests, case.sizes, variant, expected).answers == expected


def test_the_reference_gives_one_answer_too(tmp_path: Path) -> None:
    """Chunks of 7, forks and hits in few blocks, under the plan checker's eyes in the engine."""
    model = load(tiny.write_hf(tiny_state.lfm2(), tmp_path), "float32")
    case = Case(model)
    weights = load_weights(model.program, model.binding)
    requests = case.sharing[:12]
    for variant in (CACHE_VARIANTS[2], CACHE_VARIANTS[6], FORK_VARIANTS[4]):
        outcome = run(
            lambda sizes: ReferenceExecutor(model.program, weights, sizes),
            requests,
            case.sizes,
            variant,
        )
        for request in requests:
            found, expected = outcome.answers[request.id], case.expected_of_sharing[request.id]
            assert found.tokens == expected.tokens, request.params


@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
@pytest.mark.parametrize("format", ["F32", "Q4_1"])
def test_all_levels_and_threads_agree(
    make: Callable[[], TinyModel], format: str, tmp_path: Path
) -> None:
    path = tiny.write_gguf_model(make(), tmp_path / "m.gguf", format)
    for dtype in ("auto", "float32"):
        model = load(path, dtype)
        expected = native_logits(model, PROMPT, "scalar", threads=1)
        assert np.isfinite(expected).all()
        for level in LEVELS:
            for threads in (1, 3):
                found = native_logits(model, PROMPT, level, threads)
                assert np.array_equal(found, expected), (dtype, level, threads)
