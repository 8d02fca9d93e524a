"""A model whose tokens see what follows them: one vector of a text, alone, among others, with
few blocks, replayed, on every level and in the reference."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from msgspec.structs import replace

from kvasir.checkpoints import build_program, config_from, ignorable
from kvasir.core.request import NO_DRAWS, EngineRequest, PoolKind
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.passes import lower_passes
from kvasir.exec.reference import ReferenceExecutor, load_weights
from kvasir.ir.pool import with_pool
from kvasir.weights.bind import bind
from kvasir.weights.source import open_model
from tests import tiny
from tests.exactness import MakeExecutor, Sizes, Variant, baseline, run
from tests.native import BEST, LEVELS
from tests.request_sets import make_requests

SIZES = Sizes(tiny.VOCAB, max_model_len=128, whole_prompts=True)
KINDS: tuple[PoolKind, ...] = ("mean", "cls", "last")


class Case:
    """A tiny model that sees both ways, and texts."""

    def __init__(self, path: Path, dtype: str) -> None:
        source = open_model(path)
        config = config_from(source)
        config = replace(config, block=replace(config.block, both_ways=True))
        raw = build_program(config, max_positions=128)
        self.binding = bind(raw, source, ignorable(config))
        formats = self.binding.formats()
        self.program = with_pool(lower_passes(raw, dtype=dtype, formats=formats))
        asked = make_requests(40, tiny.VOCAB, seed=4, max_prompt=120, max_tokens=1)
        self.requests = [
            structs.replace(request, pooling=kind, params=NO_DRAWS)
            for request, kind in zip(asked, cycle(KINDS), strict=False)
        ]
        self.least_cosine = 0.995 if dtype == "auto" else 0.9999999
        """To the reference, whose int8 arithmetic rounds at other places."""
        self.expected = baseline(self.make(), self.requests, SIZES).answers

    def make(self, threads: int = 1, level: str = BEST) -> MakeExecutor:
        settings = CpuSettings(threads, level, hashes=True)
        return lambda sizes: CpuExecutor(self.program, self.binding, sizes, settings)

    def reference(self, sizes: EngineSizes) -> ReferenceExecutor:
        return ReferenceExecutor(self.program, load_weights(self.program, self.binding), sizes)


@pytest.fixture(scope="module", params=("Q4_1", "float32"))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "Q4_1":
        made = tiny.llama(head_dim=32)
        return Case(tiny.write_gguf_model(made, folder / "m.gguf", "Q4_1"), "auto")
    return Case(tiny.write_hf(tiny.llama(), folder), "float32")


VARIANTS = (
    Variant("many in a step", n_seqs=16, chunk=256, order=1),
    Variant("as many as fit", n_seqs=4, chunk=128, order=2),
    Variant("arriving one by one", n_seqs=8, chunk=128, stagger=1),
    Variant("overlapped", n_seqs=8, chunk=128, overlap=True, order=3),
    Variant("few blocks", n_seqs=16, chunk=256, n_spare_blocks=1, overlap=True),
    Variant("replayed", n_seqs=4, chunk=128, replay_after=1, order=4),
)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_vectors_do_not_depend_on_what_else_is_computed(case: Case, variant: Variant) -> None:
    got = run(case.make(2), case.requests, SIZES, variant, case.expected).answers
    assert got == case.expected


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_gives_the_same_bits(case: Case, level: str) -> None:
    got = run(case.make(2, level), case.requests, SIZES, VARIANTS[0], case.expected).answers
    assert got == case.expected


def test_the_reference_agrees(case: Case) -> None:
    few = case.requests[:6]
    got = baseline(case.reference, few, SIZES).answers
    for request in few:
        ours, theirs = (
            np.frombuffer(x[request.id].vector, np.float32).astype(np.float64)
            for x in (case.expected, got)
        )
        cosine = ours @ theirs / np.sqrt((ours @ ours) * (theirs @ theirs))
        assert cosine > case.least_cosine


def test_the_first_token_sees_the_last(case: Case) -> None:
    prompt = tuple(range(1, 40))
    texts = (prompt, (*prompt[:-1], 77))
    asked = [EngineRequest(i, text, NO_DRAWS, pooling="cls") for i, text in enumerate(texts)]
    answers = baseline(case.make(), asked, SIZES).answers
    assert answers[0].vector != answers[1].vector
