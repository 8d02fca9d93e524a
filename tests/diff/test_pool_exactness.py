"""One vector, however its prompt is computed: alone, among others, in chunks, cached, preempted,
replayed, on every level; and what is generated beside it stays what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvasir.core.request import NO_DRAWS, EngineRequest, PoolKind
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.reference import ReferenceExecutor, load_weights
from kvasir.ir.bundle import DRAFT, of_programs
from kvasir.ir.pool import with_pool
from tests import tiny
from tests.answers import Answer
from tests.disk_variants import DISK_VARIANTS
from tests.draft_variants import DRAFT_VARIANTS
from tests.exactness import CACHE_VARIANTS, VARIANTS, MakeExecutor, Sizes, Variant, baseline, run
from tests.fork_variants import FORK_VARIANTS
from tests.forms import n_of
from tests.loading import Loaded, load
from tests.native import BEST, LEVELS
from tests.request_sets import make_requests, make_sharing_requests, pooling
from tests.sharing_variants import SHARING_VARIANTS
from tests.toy_bundle import HIDDEN, make_toy

SIZES = Sizes(vocab_size=97)
REQUESTS = pooling(make_requests(n_of(24, 34), SIZES.vocab_size, seed=1))
SHARING = pooling(make_sharing_requests(n_of(12, 20), SIZES.vocab_size, seed=2))


@pytest.fixture(scope="module")
def alone() -> dict[int, Answer]:
    return baseline(FakeExecutor, REQUESTS, SIZES).answers


@pytest.fixture(scope="module")
def sharing_alone() -> dict[int, Answer]:
    return baseline(FakeExecutor, SHARING, SIZES).answers


@pytest.mark.parametrize("variant", VARIANTS + SHARING_VARIANTS, ids=lambda variant: variant.name)
def test_the_engine_gives_the_same_vectors(variant: Variant, alone: dict[int, Answer]) -> None:
    got = run(FakeExecutor, REQUESTS, SIZES, variant, alone).answers
    for request in REQUESTS:
        assert got[request.id] == alone[request.id], request.pooling
        assert bool(got[request.id].vector) == (request.pooling is not None)
    assert len({answer.vector for answer in alone.values()}) > len(REQUESTS) / 2


@pytest.mark.parametrize(
    "variant", (*CACHE_VARIANTS, *FORK_VARIANTS, *DISK_VARIANTS), ids=lambda variant: variant.name
)
def test_the_engine_gives_the_same_vectors_of_shared_prompts(
    variant: Variant, sharing_alone: dict[int, Answer]
) -> None:
    got = run(FakeExecutor, SHARING, SIZES, variant, sharing_alone).answers
    for request in SHARING:
        assert got[request.id] == sharing_alone[request.id], request.pooling


class Case:
    """A model, requests of which most want vectors, and their right answers."""

    def __init__(self, model: Loaded) -> None:
        self.model = model
        self.bundle = with_pool(model.program)
        self.sizes = Sizes(model.config.vocab_size, max_model_len=128)
        requests = make_requests(
            n_of(24, 40), self.sizes.vocab_size, seed=4, max_prompt=70, max_tokens=12
        )
        self.requests = pooling(requests)
        shared = make_sharing_requests(n_of(12, 24), self.sizes.vocab_size, seed=6, max_tokens=12)
        self.sharing = pooling(shared)
        self.expected = baseline(self.make(), self.requests, self.sizes).answers
        self.expected_of_sharing = baseline(self.make(), self.sharing, self.sizes).answers

    def make(self, threads: int = 1, level: str = BEST) -> MakeExecutor:
        settings = CpuSettings(threads, level, hashes=True)
        return lambda sizes: CpuExecutor(self.bundle, self.model.binding, sizes, settings)

    def reference(self, sizes: EngineSizes) -> ReferenceExecutor:
        return ReferenceExecutor(self.bundle, load_weights(self.bundle, self.model.binding), sizes)


@pytest.fixture(scope="module", params=("Q4_1", "bfloat16"))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "Q4_1":
        path = tiny.write_gguf_model(tiny.llama(head_dim=32), folder / "m.gguf", "Q4_1")
        return Case(load(path, "auto"))
    return Case(load(tiny.write_hf(tiny.gemma3(sliding_window=24), folder), "bfloat16"))


NATIVE = (*VARIANTS[3:14], *VARIANTS[16:18], *VARIANTS[25:])
CACHED = (*CACHE_VARIANTS[:12], *FORK_VARIANTS[:2], *DISK_VARIANTS[1:3])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", NATIVE, ids=lambda variant: variant.name)
def test_native_vectors_do_not_depend_on_how_they_are_computed(
    case: Case, variant: Variant
) -> None:
    got = run(case.make(2), case.requests, case.sizes, variant, case.expected).answers
    assert got == case.expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", CACHED, ids=lambda variant: variant.name)
def test_native_vectors_do_not_depend_on_what_is_cached(case: Case, variant: Variant) -> None:
    outcome = run(case.make(2), case.sharing, case.sizes, variant, case.expected_of_sharing)
    assert outcome.answers == case.expected_of_sharing


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_gives_the_same_bits(case: Case, level: str) -> None:
    got = run(case.make(2, level), case.requests, case.sizes, VARIANTS[6], case.expected).answers
    assert got == case.expected


def test_what_is_generated_alone_is_generated_beside_vectors(case: Case) -> None:
    plain = [request for request in case.requests if request.pooling is None]

    def make(sizes: EngineSizes) -> CpuExecutor:
        """Without the program that pools."""
        settings = CpuSettings(1, BEST, hashes=True)
        return CpuExecutor(case.model.program, case.model.binding, sizes, settings)

    got = baseline(make, plain, case.sizes).answers
    assert got == {request.id: case.expected[request.id] for request in plain}


@pytest.mark.parametrize("kind", ["cls", "mean", "last"])
def test_reference_and_native_agree(case: Case, kind: PoolKind) -> None:
    prompt = tuple(7 * i % 90 + 3 for i in range(50))
    requests = [EngineRequest(1, prompt, NO_DRAWS, pooling=kind)]
    chunks = next(variant for variant in VARIANTS if variant.name == "chunks of 7")
    got = []
    for make in (case.make(), case.reference):
        vector = run(make, requests, case.sizes, chunks).answers[1].vector
        assert len(vector) == 4 * case.model.config.hidden_size
        got.append(np.frombuffer(vector, np.float32).astype(np.float64))
    assert np.linalg.norm(got[0] - got[1]) < 0.02 * np.linalg.norm(got[1])


def test_a_mean_is_that_of_the_last_vectors(case: Case) -> None:
    """Of each beginning of the prompt the vector of its last token; the mean adds these."""
    prompt = tuple(11 * i % 90 + 3 for i in range(20))
    requests = [
        EngineRequest(i, prompt[: i + 1], NO_DRAWS, pooling="last") for i in range(len(prompt))
    ]
    requests.append(EngineRequest(20, prompt, NO_DRAWS, pooling="mean"))
    requests.append(EngineRequest(21, prompt, NO_DRAWS, pooling="cls"))
    answers = run(case.make(), requests, case.sizes, VARIANTS[0]).answers
    rows = [np.frombuffer(answers[i].vector, np.float32) for i in range(22)]
    total = np.zeros(len(rows[0]))
    for row in rows[:20]:
        total += row
    assert (total / 20).astype(np.float32).tobytes() == answers[20].vector
    assert answers[21].vector == answers[0].vector


@pytest.mark.parametrize("variant", DRAFT_VARIANTS[:9:2], ids=lambda variant: variant.name)
def test_vectors_are_made_before_drafts_read_the_same_rows(
    variant: Variant, tmp_path: Path
) -> None:
    """A draft program moves the rows that it reads, which are those that are pooled."""
    toy = make_toy("reading", tmp_path)
    programs = with_pool(toy.bundle.target).programs
    draft = toy.bundle.draft
    assert draft is not None
    both = of_programs({**programs, DRAFT: draft})
    assert both.exports == (HIDDEN,)
    sizes = Sizes(tiny.VOCAB, max_model_len=128)
    requests = pooling(make_requests(24, tiny.VOCAB, seed=4, max_prompt=60, max_tokens=24))
    one, two = (CpuSettings(n, BEST, hashes=True) for n in (1, 2))

    def alone(sizes: EngineSizes) -> CpuExecutor:
        return CpuExecutor(with_pool(toy.target), toy.binding, sizes, one)

    expected = baseline(alone, requests, sizes).answers
    got = run(lambda s: CpuExecutor(both, toy.binding, s, two), requests, sizes, variant)
    assert got.answers == expected
