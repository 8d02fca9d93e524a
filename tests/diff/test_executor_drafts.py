"""Executors that draft give the answers of the target alone, whatever their drafts are worth."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec import structs

from kvasir.exec.fake import FakeExecutor
from tests.draft_variants import DRAFT_VARIANTS, LAZY_VARIANTS, Counted
from tests.exactness import Outcome, Sizes, Variant, baseline, run
from tests.forms import n_of
from tests.request_sets import make_requests, make_sharing_requests

SIZES = (
    Sizes(vocab_size=97),
    Sizes(vocab_size=97, windows=(24,)),
    Sizes(vocab_size=97, windows=(33,), has_full=False),
)
REQUESTS = [
    *make_requests(n_of(12, 24), 97, seed=1, max_tokens=40),
    *make_sharing_requests(n_of(12, 24), 97, seed=2, max_tokens=40),
]
REQUESTS = [structs.replace(request, id=i) for i, request in enumerate(REQUESTS)]


@pytest.fixture(scope="module", params=SIZES, ids=lambda sizes: f"windows of {sizes.windows}")
def known(request: pytest.FixtureRequest) -> tuple[Sizes, Outcome]:
    sizes: Sizes = request.param
    return sizes, baseline(FakeExecutor, REQUESTS, sizes)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("misses", [0, 3])
@pytest.mark.parametrize("variant", DRAFT_VARIANTS, ids=lambda variant: variant.name)
def test_drafts_change_no_answer(
    variant: Variant, misses: int, known: tuple[Sizes, Outcome]
) -> None:
    sizes, expected = known
    counted = Counted(partial(FakeExecutor, misses=misses))
    outcome = run(counted, REQUESTS, sizes, variant, expected.answers)
    for request in REQUESTS:
        assert outcome.answers[request.id] == expected.answers[request.id], request.params
    share = counted.n_accepted / counted.n_verified
    assert share == 1 if not misses else 0.2 < share < 0.8
    assert (counted.n_named > 0) == variant.overlap
    if variant.n_spare_blocks is not None:
        assert outcome.stats.n_preemptions > 0


@pytest.fixture(scope="module")
def expected() -> Outcome:
    return baseline(FakeExecutor, REQUESTS, SIZES[0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("misses", [0, 3])
@pytest.mark.parametrize("variant", LAZY_VARIANTS, ids=lambda variant: variant.name)
def test_a_draft_program_that_lags_behind_lacks_nothing_when_it_drafts(
    variant: Variant, misses: int, expected: Outcome
) -> None:
    counted = Counted(partial(FakeExecutor, misses=misses))
    outcome = run(counted, REQUESTS, SIZES[0], variant, expected.answers)
    for request in REQUESTS:
        assert outcome.answers[request.id] == expected.answers[request.id], request.params
    share = counted.n_accepted / counted.n_verified
    assert share == 1 if not misses else 0.2 < share < 0.8
    assert counted.n_followed > 0
