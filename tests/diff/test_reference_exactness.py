"""Real programs under the scheduler: windows, experts and norms change nothing in the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvasir.core.sizes import EngineSizes
from kvasir.exec.reference import ReferenceExecutor, load_weights
from tests import tiny, tiny_latent
from tests.draft_variants import SEEING_VARIANTS
from tests.exactness import VARIANTS, Sizes, baseline, run
from tests.loading import load
from tests.request_sets import make_requests

NAMES = (
    "batch of 7, shuffled",
    "chunks of 7",
    "preempted",
    "tree drafts, wrong at depth 2",
    "tree drafts, overlapped, chunks of 7",
    "recycled, three at a time",
    "replayed, overlapped, preempted",
    "looked ahead, chunks of 7, staggered",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("names", [NAMES[:3], NAMES[3:6], NAMES[6:]], ids=lambda names: names[0])
@pytest.mark.parametrize(
    "family",
    [
        *(tiny.llama, tiny.mistral, tiny.mixtral, tiny.gemma3, tiny.qwen2, tiny.qwen3),
        tiny_latent.deepseek_v3,
    ],
    ids=lambda f: f.__name__,
)
def test_tokens_do_not_depend_on_how_they_are_computed(
    family: Callable[[], tiny.TinyModel], names: tuple[str, ...], tmp_path: Path
) -> None:
    """Tokens alone: NumPy's own sums may differ in the last bit between shapes."""
    model = load(tiny.write_hf(family(), tmp_path))
    weights = load_weights(model.program, model.binding)

    def make(sizes: EngineSizes) -> ReferenceExecutor:
        return ReferenceExecutor(model.program, weights, sizes)

    sizes = Sizes(model.config.vocab_size, max_model_len=128)
    requests = make_requests(11, sizes.vocab_size, seed=4, max_prompt=24, max_tokens=12)
    expected = baseline(make, requests, sizes).answers
    assert sum(len(answer.tokens) for answer in expected.values()) > 40
    for variant in (*VARIANTS, *SEEING_VARIANTS):
        if variant.name in names:
            got = run(make, requests, sizes, variant, expected).answers
            assert [got[i].tokens for i in expected] == [a.tokens for a in expected.values()]
            assert [got[i].finish for i in expected] == [a.finish for a in expected.values()]
