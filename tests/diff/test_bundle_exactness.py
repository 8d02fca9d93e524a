"""Two programs over one pool, sampler and KV memory give the answers of the target alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from kvasir import _native
from kvasir.core.plan import MAX_LOGIT_ROWS
from kvasir.core.sizes import EngineSizes
from kvasir.exec.local import LocalExecutor
from kvasir.exec.reference import ReferenceExecutor, load_weights
from tests import tiny
from tests.draft_variants import DRAFT_VARIANTS, LAZY_VARIANTS, Counted
from tests.exactness import Outcome, Sizes, Variant, baseline, run
from tests.request_sets import make_requests, make_sharing_requests
from tests.toy_bundle import WINDOW, Toy, make_toy

SIZES = Sizes(tiny.VOCAB, max_model_len=128)
FEW = make_requests(8, tiny.VOCAB, seed=4, max_prompt=24, max_tokens=24)
MANY = [
    *make_requests(10, tiny.VOCAB, seed=4, max_prompt=60, max_tokens=40),
    *make_sharing_requests(10, tiny.VOCAB, seed=5, max_prompt=60, max_tokens=40),
]
MANY = [structs.replace(request, id=i) for i, request in enumerate(MANY)]
BY_REFERENCE = ("batch, shuffled", "overlapped, chunks of 7, staggered", "overlapped, preempted")


@pytest.fixture(scope="module", params=("equal", "shallow", "reading"))
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make_toy(request.param, tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def expected(toy: Toy) -> Outcome:
    return baseline(toy.native_alone, MANY, SIZES)


def judge(counted: Counted, toy: Toy) -> None:
    """A draft that is the target is accepted always, another one now and then."""
    share = counted.n_accepted / counted.n_verified
    assert share == 1 if toy.name == "equal" else share < 0.5
    assert share > 0.04 or toy.name == "reading"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("variant", DRAFT_VARIANTS, ids=lambda variant: variant.name)
def test_answers_are_those_of_the_target_alone(
    toy: Toy, expected: Outcome, variant: Variant
) -> None:
    counted = Counted(toy.native)
    outcome = run(counted, MANY, SIZES, variant)
    for request in MANY:
        assert outcome.answers[request.id] == expected.answers[request.id], request.params
    judge(counted, toy)
    assert (counted.n_named > 0) == variant.overlap
    if variant.n_spare_blocks is not None:
        assert outcome.stats.n_preemptions > 0


@pytest.mark.parametrize("variant", BY_REFERENCE)
def test_the_reference_answers_and_drafts_the_same(toy: Toy, variant: str) -> None:
    weights = load_weights(toy.target, toy.binding)

    def alone(sizes: EngineSizes) -> LocalExecutor[Any]:
        return ReferenceExecutor(toy.target, weights, sizes)

    chosen = next(x for x in DRAFT_VARIANTS if x.name == variant)
    wanted = baseline(alone, FEW, SIZES).answers
    by_reference, by_native = Counted(toy.reference), Counted(toy.native)
    assert run(by_reference, FEW, SIZES, chosen).answers == wanted
    got = run(by_native, FEW, SIZES, chosen).answers
    assert {i: x.tokens for i, x in got.items()} == {i: x.tokens for i, x in wanted.items()}
    logprobs = [
        [x.logprob for i in sorted(answers) for x in answers[i].logprobs]
        for answers in (got, wanted)
    ]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    assert len(logprobs[0]) > 20
    for counted in (by_reference, by_native):
        judge(counted, toy)
    assert by_native.drafts == by_reference.drafts
    assert len(by_native.drafts) > 12


@pytest.mark.parametrize("variant", LAZY_VARIANTS[::3], ids=lambda variant: variant.name)
def test_a_draft_that_takes_tokens_in_when_it_is_asked(
    variant: Variant, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Native and by the reference: it lacks nothing, so that all that it drafts is drawn."""
    toy = make_toy("equal", tmp_path_factory.mktemp("lazy"))
    wanted = baseline(toy.native_alone, FEW, SIZES).answers
    for make in (toy.native, toy.reference):
        counted = Counted(make)
        got = run(counted, FEW, SIZES, variant).answers
        assert [got[i].tokens for i in wanted] == [answer.tokens for answer in wanted.values()]
        judge(counted, toy)
        assert 0 < counted.n_followed < counted.n_computed


@pytest.fixture(scope="module", params=["bfloat16", "auto"])
def windowed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Toy, Sizes, Outcome]:
    toy = make_toy("windowed", tmp_path_factory.mktemp("windowed"), request.param)
    sizes = replace(SIZES, windows=(WINDOW,))
    return toy, sizes, baseline(toy.native_alone, MANY, sizes)


@pytest.mark.parametrize("variant", DRAFT_VARIANTS[5:9], ids=lambda variant: variant.name)
def test_windows_and_smaller_weights(
    variant: Variant, windowed: tuple[Toy, Sizes, Outcome]
) -> None:
    toy, sizes, expected = windowed
    counted = Counted(partial(toy.native, threads=1))
    assert run(counted, MANY, sizes, variant).answers == expected.answers
    assert counted.n_accepted == counted.n_verified > 0


def test_references_are_read_as_they_are_written() -> None:
    assert _native.MAX_LOGIT_ROWS == MAX_LOGIT_ROWS
