"""A token whose embedding is not finite fails its own request, whoever shares step, blocks or
memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from kvasir.core.params import TokenParams
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.sched.scheduler import Scheduler
from tests import tiny
from tests.damage import poisoned
from tests.exactness import CACHE_VARIANTS, VARIANTS, Answer, Sizes, Variant, baseline, run
from tests.fork_variants import FORK_VARIANTS
from tests.loading import Loaded, load
from tests.native import BEST
from tests.request_sets import make_sharing_requests
from tests.sizes import config_of

BAD = 200
"""The token."""
NAMES = (
    "batch of 64, shuffled",
    "chunks of 7",
    "preempted, no spare block, chunks of 7",
    "overlapped, preempted",
    "tree drafts, overlapped, preempted",
)
CACHED = ("all at once", "overlapped, preempted", "overlapped, chunks of 7, staggered", "replayed")
CHOSEN: tuple[Variant, ...] = (
    *(variant for variant in VARIANTS if variant.name in NAMES),
    *(replace(v, name=f"cached, {v.name}") for v in CACHE_VARIANTS if v.name in CACHED),
    *FORK_VARIANTS[5:6],
)


def _q8(model: tiny.TinyModel, folder: Path) -> Path:
    with np.errstate(invalid="ignore"):
        return tiny.write_gguf_model(model, folder / "m.gguf", "Q8_0")


@dataclass(frozen=True, slots=True)
class Kind:
    """A model, what its bad token holds, and its types."""

    model: Callable[[], tiny.TinyModel]
    value: float
    write: Callable[[tiny.TinyModel, Path], Path] = tiny.write_hf
    dtype: str = "auto"
    kv_dtype: str | None = None

    def load(self, folder: Path) -> Loaded:
        path = self.write(poisoned(self.model(), BAD, self.value), folder)
        return load(path, self.dtype, kv_dtype=self.kv_dtype)


KINDS = {
    "llama Q8_0, KV int8": Kind(lambda: tiny.llama(head_dim=32), np.nan, _q8, kv_dtype="int8"),
    "llama float32, inf": Kind(tiny.llama, np.inf, dtype="float32"),
    "mistral bfloat16": Kind(lambda: tiny.mistral(window=24), np.nan, dtype="bfloat16"),
    "mixtral Q8_0": Kind(tiny.mixtral, np.nan, _q8),
}


def make_mates(vocab: int) -> list[EngineRequest]:
    """They cannot meet the token."""
    mates = []
    for one in make_sharing_requests(20, vocab, seed=8, max_tokens=16):
        bias = (*(entry for entry in one.params.logit_bias if entry[0] != BAD), (BAD, -1000.0))
        prompt = tuple(3 if token == BAD else token for token in one.prompt)
        params = with_fields(one.params, logit_bias=bias)
        mates.append(with_fields(one, prompt=prompt, params=params))
    return mates


def make_bad(mates: list[EngineRequest]) -> list[EngineRequest]:
    """They begin as mates do: with the token early, late, twice the same, at the end and drawn."""
    long = max(mates, key=lambda one: len(one.prompt)).prompt
    plain = TokenParams(seed=5, max_tokens=9, temperature=0.9, n_logprobs=2)
    drawing = with_fields(plain, logit_bias=((BAD, 1000.0),))
    prompts = (
        (BAD, *long[1:]),
        (*long[:33], BAD, *long[34:]),
        (*long[:33], BAD, *long[34:]),
        (*long[:16], BAD),
    )
    asked = [*((prompt, plain) for prompt in prompts), (long[:40], drawing), (long, drawing)]
    return [EngineRequest(len(mates) + i, *one) for i, one in enumerate(asked)]


class Case:
    """Both kinds of requests, mixed, and what each gets alone."""

    def __init__(self, model: Loaded) -> None:
        self.model = model
        windows = tuple(sorted(set(model.config.windows) - {0}))
        plain = Sizes(model.config.vocab_size, max_model_len=128)
        has_full = not windows or 0 in model.config.windows
        self.sizes = replace(plain, windows=windows, has_full=has_full)
        mates = make_mates(plain.vocab_size)
        bad = make_bad(mates)
        self.bad = {one.id for one in bad}
        self.requests = [*mates[:7], *bad[::2], *mates[7:12], *bad[1::2], *mates[12:]]
        self.expected = baseline(self.make, self.requests, plain).answers

    def make(self, sizes: EngineSizes) -> CpuExecutor:
        settings = CpuSettings(1, BEST, hashes=True)
        return CpuExecutor(self.model.program, self.model.binding, sizes, settings)


@pytest.fixture(scope="module", params=KINDS, ids=list(KINDS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(KINDS[request.param].load(tmp_path_factory.mktemp("model")))


def told(answer: Answer) -> object:
    """Of a request that fails: what its client reads."""
    return answer.tokens, answer.logprobs, answer.finish, answer.error_code


def test_alone_only_those_with_the_token_fail(case: Case) -> None:
    codes = {i: answer.error_code for i, answer in case.expected.items()}
    assert {i for i, code in codes.items() if code == "model_numerics"} == case.bad
    assert all(code is None for i, code in codes.items() if i not in case.bad)
    drawn = [case.expected[i].tokens for i in sorted(case.bad)]
    assert drawn == [(), (), (), (), (BAD,), (BAD,)]


@pytest.mark.parametrize("variant", CHOSEN, ids=lambda variant: variant.name)
def test_r71_mates_do_not_notice(case: Case, variant: Variant) -> None:
    outcome = run(case.make, case.requests, case.sizes, variant, case.expected)
    for i, expected in case.expected.items():
        found = outcome.answers[i]
        if i in case.bad:
            assert told(found) == told(expected), i
        else:
            assert found == expected, i
    if variant.replay_after is None:
        assert outcome.stats.n_failed == len(case.bad)


@pytest.mark.parametrize("chunk", [32, 128])
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_r71_nothing_of_it_is_cached(case: Case, overlap: bool, chunk: int) -> None:
    """But what a mate vouched for, and that is found afterwards."""
    if case.sizes.windows:
        pytest.skip("a window gives blocks back by itself")
    prompt = tuple(range(3, 67))
    config = config_of(128, 4, chunk, 32, 16, enable_prefix_caching=True)
    sizes = EngineSizes(case.sizes.vocab_size, 128, 4, chunk, 32, 16)
    made = Engine(case.make(sizes), Scheduler(config), overlap=overlap)
    params = TokenParams(seed=1, max_tokens=1)

    def ask(i: int, tokens: tuple[int, ...]) -> str | None:
        made.submit([EngineRequest(i, tokens, params)])
        news = []
        while made.has_work:
            news += made.step().events
            made.check()
        return news[-1].error_code

    assert ask(0, prompt[:33]) is None
    assert made.stats().blocks_cached == 2
    assert ask(1, (*prompt[:36], BAD, *prompt[37:])) == "model_numerics"
    assert ask(2, (BAD, *prompt[1:])) == "model_numerics"
    assert (made.stats().blocks_cached, made.stats().n_failed) == (2, 2)
    hits = made.stats().prefix_hits
    assert ask(3, prompt) is None
    assert made.stats().prefix_hits == hits + 32
    made.close()
