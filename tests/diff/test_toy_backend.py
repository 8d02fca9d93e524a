"""A backend that the project does not know: the same answers through the same door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvasir.config.options import EngineOptions
from kvasir.core.params import TokenParams
from kvasir.core.request import EngineRequest
from kvasir.engine.build import build_engine
from kvasir.exec import backends
from kvasir.exec.reference import ReferenceExecutor, load_weights
from kvasir.exec.reference.backend import REFERENCE
from tests import tiny
from tests.disk_variants import DISK_VARIANTS
from tests.exactness import CACHE_VARIANTS, VARIANTS, Sizes, baseline, run
from tests.fork_variants import FORK_VARIANTS
from tests.loading import load
from tests.request_sets import KINDS, make_requests, make_sharing_requests
from tests.toy_backend import TOY, ToyExecutor

PICKED = (*VARIANTS[1::2], *CACHE_VARIANTS[1::2], *FORK_VARIANTS[::2], *DISK_VARIANTS[::4])


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("family", [tiny.llama, tiny.gemma3], ids=lambda f: f.__name__)
@pytest.mark.sampled(2)
def test_tokens_are_those_of_the_reference(
    family: Callable[[], tiny.TinyModel], odd: int, tmp_path: Path
) -> None:
    """Each family in every other way; ``make test-long``: in all."""
    model = load(tiny.write_hf(family(), tmp_path), "bfloat16")
    weights = load_weights(model.program, model.binding)
    windows = tuple(sorted({*model.config.windows} - {0}))
    sizes = Sizes(model.config.vocab_size, 128, windows=windows)
    requests = make_requests(len(KINDS), tiny.VOCAB, seed=4, max_prompt=24, max_tokens=12)
    sharing = make_sharing_requests(6, tiny.VOCAB, seed=6, max_prompt=40, max_tokens=9)
    for asked, has_cache in ((requests, False), (sharing, True)):
        expected = baseline(
            lambda sizes: ReferenceExecutor(model.program, weights, sizes), asked, sizes
        ).answers
        for variant in PICKED[odd::2]:
            if (variant.cache or variant.forks) == has_cache:
                outcome = run(
                    lambda sizes: ToyExecutor(model.program, weights, sizes),
                    asked,
                    sizes,
                    variant,
                    expected,
                )
                got = {i: (x.tokens, x.finish) for i, x in outcome.answers.items()}
                assert got == {i: (x.tokens, x.finish) for i, x in expected.items()}, variant


def test_an_engine_is_built_of_it_through_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write_hf(tiny.llama(), tmp_path)
    entries = {"reference": lambda: REFERENCE, "toy": lambda: TOY}
    monkeypatch.setattr(backends, "BACKENDS", entries)
    answers = []
    for name in ("reference", "toy"):
        built = build_engine(
            EngineOptions(model=str(tmp_path), executor=name, dtype="float32", max_model_len=64)
        )
        assert built.numerics_id.startswith(name)
        built.engine.add(EngineRequest(0, tuple(range(9)), TokenParams(seed=1, max_tokens=12)))
        tokens: list[int] = []
        while built.engine.has_work:
            tokens += [t for event in built.engine.step().events for t in event.tokens]
        built.engine.close()
        answers.append(tokens)
    assert answers[0] == answers[1] and len(answers[0]) == 12
