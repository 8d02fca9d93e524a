"""One answer with every type of the KV cache: where its entries are cut, moved, copied or computed
again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny, tiny_latent
from tests.diff.test_native_exactness import Case
from tests.exactness import CACHE_VARIANTS, VARIANTS, Variant, run
from tests.loading import load

MODELS: dict[str, tuple[Callable[[], tiny.TinyModel], str]] = {
    "int8": (tiny.llama, "int8"),
    "e4m3, windows": (tiny.gemma3, "fp8_e4m3"),
    "e5m2": (tiny.llama, "fp8_e5m2"),
    "int8, latents": (tiny_latent.deepseek_v3, "int8"),
}
NAMES = (
    "batch of 64, shuffled",
    "chunks of 7",
    "preempted, no spare block, chunks of 7",
    "tree drafts, wrong at depth 2",
    "tree drafts, overlapped, preempted",
)
CACHE_NAMES = (
    "shuffled, chunks of 7",
    "evicted and computed again",
    "tree drafts, overlapped, preempted",
)


@pytest.fixture(scope="module", params=MODELS, ids=list(MODELS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model, kv_dtype = MODELS[request.param]
    path: Path = tiny.write_gguf_model(model(), tmp_path_factory.mktemp("model") / "m.gguf", "Q8_0")
    return Case(load(path, "auto", kv_dtype=kv_dtype))


def named(variants: tuple[Variant, ...], names: tuple[str, ...]) -> list[Variant]:
    found = [variant for variant in variants if variant.name in names]
    assert len(found) == len(names)
    return found


@pytest.mark.parametrize("variant", named(VARIANTS, NAMES), ids=lambda variant: variant.name)
def test_answers_do_not_depend_on_how_they_are_computed(case: Case, variant: Variant) -> None:
    expected = case.expected.answers
    outcome = run(case.make(2), case.requests, case.sizes, variant, expected)
    assert [outcome.answers[r.id] for r in case.requests] == [expected[r.id] for r in case.requests]


@pytest.mark.parametrize(
    "variant", named(CACHE_VARIANTS, CACHE_NAMES), ids=lambda variant: variant.name
)
def test_answers_do_not_depend_on_what_is_cached(case: Case, variant: Variant) -> None:
    expected = case.expected_of_sharing
    outcome = run(case.make(2), case.sharing, case.sizes, variant, expected)
    assert [outcome.answers[r.id] for r in case.sharing] == [expected[r.id] for r in case.sharing]
    assert outcome.stats.prefix_hits > 0
