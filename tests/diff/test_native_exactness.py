"""One answer on the native executor: tokens, logprobs and the hashes of the logits."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvasir.config.affinity import Affinity
from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.packed import PackedCache
from kvasir.exec.cpu.sites import N_CLASSES
from tests import (
    quantized_kinds,
    tiny,
    tiny_gemma,
    tiny_gemma3n,
    tiny_latent,
    tiny_layer_norms,
    tiny_llama4,
    tiny_moe,
    tiny_rope,
)
from tests.disk_variants import DISK_VARIANTS
from tests.draft_variants import SEEING_CACHED, SEEING_VARIANTS
from tests.exactness import (
    CACHE_VARIANTS,
    VARIANTS,
    Outcome,
    Sizes,
    Variant,
    baseline,
    run,
)
from tests.fork_variants import FORK_VARIANTS
from tests.forms import n_of
from tests.loading import Loaded, load
from tests.native import BEST, LEVELS
from tests.quantized_kinds import KINDS, SIZES
from tests.quantized_writer import gptq, in_another_order, write_quantized
from tests.request_sets import make_requests, make_sharing_requests, next_turns
from tests.sharing_variants import SHARING_VARIANTS

ACT_ORDER = in_another_order(gptq(4, 32, sym=False, desc_act=True))
MODELS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "llama Q4_1": (
        lambda p: tiny.write_gguf_model(tiny.llama(head_dim=32), p / "m.gguf", "Q4_1"),
        "auto",
    ),
    "llama float32": (lambda p: tiny.write_hf(tiny.llama(), p), "float32"),
    "mixtral Q8_0": (lambda p: tiny.write_gguf_model(tiny.mixtral(), p / "m.gguf", "Q8_0"), "auto"),
    "gpt-oss Q4_0": (
        lambda p: tiny.write_gguf_model(tiny_moe.gpt_oss(sliding_window=24), p / "m.gguf", "Q4_0"),
        "auto",
    ),
    "glm4_moe Q8_0": (
        lambda p: tiny.write_gguf_model(tiny_moe.glm4_moe(), p / "m.gguf", "Q8_0"),
        "auto",
    ),
    "deepseek_v2 Q8_0": (
        lambda p: tiny.write_gguf_model(tiny_latent.deepseek_v2(), p / "m.gguf", "Q8_0"),
        "auto",
    ),
    "deepseek_v3 float32": (lambda p: tiny.write_hf(tiny_latent.deepseek_v3(), p), "float32"),
    "gpt2 Q8_0": (
        lambda p: tiny.write_gguf_model(tiny_layer_norms.gpt2(), p / "m.gguf", "Q8_0"),
        "auto",
    ),
    "gemma3 bfloat16": (lambda p: tiny.write_hf(tiny.gemma3(sliding_window=24), p), "bfloat16"),
    "gemma3n bfloat16": (
        lambda p: tiny.write_hf(tiny_gemma3n.gemma3n(sliding_window=24), p),
        "bfloat16",
    ),
    "gemma4 bfloat16": (
        lambda p: tiny.write_hf(tiny_gemma.gemma4_moe(sliding_window=24, global_head_dim=512), p),
        "bfloat16",
    ),
    "llama4 bfloat16": (
        lambda p: tiny.write_hf(
            tiny_llama4.llama4(attention_chunk_size=24, num_experts_per_tok=2), p
        ),
        "bfloat16",
    ),
    "mixtral GPTQ, inputs in another order": (
        lambda p: write_quantized(tiny.mixtral(**SIZES), p, ACT_ORDER).folder,
        "auto",
    ),
    "qwen2 FP8": (
        lambda p: write_quantized(quantized_kinds.qwen2(), p, KINDS["fp8-blocks"]).folder,
        "auto",
    ),
    "ministral3 bfloat16": (lambda p: tiny.write_hf(tiny_rope.ministral3(), p), "bfloat16"),
}
MakeExecutor = Callable[[EngineSizes], CpuExecutor]


class Case:
    """A model, its requests and their right answers."""

    def __init__(self, model: Loaded) -> None:
        self.model = model
        vocab, state_bytes = model.config.vocab_size, sum(model.config.state_bytes)
        self.sizes = Sizes(vocab, max_model_len=128, state_bytes=state_bytes)
        self.grouped = grouped(self.sizes, model)
        self.requests = make_requests(n_of(24, 40), vocab, seed=4, max_prompt=70, max_tokens=20)
        self.expected: Outcome = baseline(self.make(1), self.requests, self.sizes)
        self.sharing = make_sharing_requests(n_of(16, 24), vocab, seed=6, max_tokens=20)
        first = baseline(self.make(1), self.sharing, self.sizes).answers
        outputs = {i: answer.tokens for i, answer in first.items()}
        second = next_turns(self.sharing, outputs, max_prompt=100)
        self.expected_of_sharing = first | baseline(self.make(1), second, self.sizes).answers
        self.sharing += second

    def make(self, threads: int, cache: PackedCache | None = None) -> MakeExecutor:
        settings = CpuSettings(threads, BEST, packed_cache=cache, hashes=True)
        return lambda sizes: CpuExecutor(self.model.program, self.model.binding, sizes, settings)


def grouped(sizes: Sizes, model: Loaded) -> Sizes:
    """With a KV group for each window of the model; alone, requests keep every position."""
    windows = set(model.config.windows) or {0}
    return replace(sizes, windows=tuple(sorted(windows - {0})), has_full=0 in windows)


@pytest.fixture(scope="module", params=MODELS, ids=list(MODELS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    write, dtype = MODELS[request.param]
    return Case(load(write(tmp_path_factory.mktemp("model")), dtype))


@pytest.mark.sampled(len(MODELS) + 1)
@pytest.mark.parametrize(
    "variant",
    (*VARIANTS, *SHARING_VARIANTS[3:], *SEEING_VARIANTS),
    ids=lambda variant: variant.name,
)
@pytest.mark.parametrize("threads", [1, 2])
def test_answers_do_not_depend_on_how_they_are_computed(
    case: Case, threads: int, variant: Variant
) -> None:
    expected, sizes = case.expected.answers, case.sizes if threads == 1 else case.grouped
    outcome = run(case.make(threads), case.requests, sizes, variant, expected)
    for request in case.requests:
        assert outcome.answers[request.id] == expected[request.id], request.params
    assert sum(sum(map(bool, answer.hashes)) for answer in expected.values()) > 150


def test_answers_do_not_depend_on_where_threads_and_memory_are(case: Case) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    bound = Affinity(threads=((cpus[-1],), (cpus[0],), tuple(cpus)), nodes=(0,))

    def make(sizes: EngineSizes) -> CpuExecutor:
        settings = CpuSettings(3, BEST, hashes=True, affinity=bound, huge_pages=False)
        return CpuExecutor(case.model.program, case.model.binding, sizes, settings)

    outcome = run(make, case.requests, case.grouped, VARIANTS[0], case.expected.answers)
    assert outcome.answers == case.expected.answers


class Choosing(CpuExecutor):
    """Before every step each linear gets any of the variants that it has."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._random = random.Random(19)
        self._choices = [
            (weight, n, site.variants[n])
            for site in self.tuning.sites
            for weight in site.weights
            for n in range(N_CLASSES)
        ]

    def run(self, plan: StepPlan, **debugging: Any) -> StepResult:
        for weight, number, variants in self._choices:
            self.choose(weight, number, self._random.choice(variants))
        return super().run(plan, **debugging)


@pytest.mark.parametrize("variant", [VARIANTS[3], VARIANTS[7]], ids=lambda variant: variant.name)
def test_answers_do_not_depend_on_the_kernels_that_are_chosen(case: Case, variant: Variant) -> None:
    def make(sizes: EngineSizes) -> CpuExecutor:
        settings = CpuSettings(2, BEST, hashes=True, tuning="cached")
        return Choosing(case.model.program, case.model.binding, sizes, settings)

    outcome = run(make, case.requests, case.grouped, variant, case.expected.answers)
    assert outcome.answers == case.expected.answers


def test_answers_do_not_depend_on_where_packed_weights_lie(case: Case, tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 1 << 30, min_bytes=0)
    expected = {request.id: case.expected.answers[request.id] for request in case.requests[:9]}
    for n_files in (0, 1):
        assert len(list(tmp_path.iterdir())) == n_files
        make = case.make(2, cache)
        outcome = run(make, case.requests[:9], case.sizes, VARIANTS[0])
        assert outcome.answers == expected


@pytest.mark.sampled(len(MODELS))
@pytest.mark.parametrize(
    "variant", (*CACHE_VARIANTS, *SEEING_CACHED, *FORK_VARIANTS), ids=lambda variant: variant.name
)
def test_answers_do_not_depend_on_what_is_cached(case: Case, variant: Variant) -> None:
    expected = case.expected_of_sharing
    outcome = run(case.make(2), case.sharing, case.grouped, variant, expected)
    for request in case.sharing:
        assert outcome.answers[request.id] == expected[request.id], request.params
    is_tight = variant.forks and variant.n_spare_blocks is not None
    # a parent of few blocks has given back those of its windows that a fork would see, or, when its
    # fork comes a step later, all of them
    may_miss = is_tight and (case.grouped.windows or variant.overlap)
    assert outcome.stats.prefix_hits > 0 or may_miss


@pytest.mark.sampled(len(MODELS))
@pytest.mark.parametrize("variant", DISK_VARIANTS, ids=lambda variant: variant.name)
def test_answers_do_not_depend_on_the_disk(case: Case, variant: Variant) -> None:
    expected = case.expected_of_sharing
    outcome = run(case.make(2), case.sharing, case.grouped, variant, expected)
    for request in case.sharing:
        assert outcome.answers[request.id] == expected[request.id], request.params
    disk = outcome.stats.disk
    assert disk is not None
    assert (disk.n_hit if variant.again else disk.n_stored) > 0


@pytest.mark.sampled(3)
def test_blocks_of_another_isa_level_are_found(case: Case) -> None:
    """All levels compute the same bits, so their blocks have the same keys."""
    levels = iter(("scalar", LEVELS[-1]))

    def make(sizes: EngineSizes) -> CpuExecutor:
        settings = CpuSettings(2, next(levels), hashes=True)
        return CpuExecutor(case.model.program, case.model.binding, sizes, settings)

    restarted = next(variant for variant in DISK_VARIANTS if variant.name == "restarted")
    outcome = run(make, case.sharing, case.grouped, restarted)
    assert outcome.answers == case.expected_of_sharing
    assert outcome.stats.disk is not None
    assert outcome.stats.disk.n_hit > 100


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "variant", (*VARIANTS[8:18], *CACHE_VARIANTS[:12]), ids=lambda variant: variant.name
)
def test_a_window_in_every_layer_changes_nothing(mistral: Case, variant: Variant) -> None:
    expected = mistral.expected_of_sharing
    outcome = run(mistral.make(2), mistral.sharing, mistral.grouped, variant, expected)
    for request in mistral.sharing:
        assert outcome.answers[request.id] == expected[request.id], request.params


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("mistral")
    return Case(load(tiny.write_hf(tiny.mistral(window=33), folder), "bfloat16"))
