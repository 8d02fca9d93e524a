"""Blocks that went to disk and came back change no answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir.core.sizes import EngineSizes
from kvasir.engine.loop import EngineFault
from kvasir.exec.fake import FakeExecutor
from tests.disk_variants import DISK_VARIANTS
from tests.exactness import Sizes, Variant, baseline, run
from tests.request_sets import make_sharing_requests, next_turns


class Case:
    """Requests and their right answers."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        first = make_sharing_requests(14, self.sizes.vocab_size, seed=3, max_tokens=50)
        answers = baseline(FakeExecutor, first, self.sizes).answers
        outputs = {i: answer.tokens for i, answer in answers.items()}
        second = next_turns(first, outputs, max_prompt=140)
        self.requests = first + second
        self.answers = answers | baseline(FakeExecutor, second, self.sizes).answers


FULL = Sizes(vocab_size=97)
ALL_SIZES = (
    FULL,
    replace(FULL, windows=(20, 40)),
    replace(FULL, windows=(33,), has_full=False),
)


@pytest.fixture(scope="module", params=ALL_SIZES, ids=["full", "windows", "window alone"])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("variant", DISK_VARIANTS, ids=lambda variant: variant.name)
def test_answers_do_not_depend_on_the_disk(variant: Variant, case: Case) -> None:
    outcome = run(FakeExecutor, case.requests, case.sizes, variant, case.answers)
    for request in case.requests:
        assert outcome.answers[request.id] == case.answers[request.id], request.params
    disk = outcome.stats.disk
    assert disk is not None
    assert disk.n_stored + disk.n_loaded > 0
    assert disk.n_hit > 0 or variant.reset_every
    assert (disk.n_damaged > 0) == variant.damaged


class _Forgetful(FakeExecutor):
    def write_block(self, group: int, block: int, data: bytes) -> None:
        """What came from disk is lost."""


def test_a_lost_load_is_noticed(case: Case) -> None:
    restarted = next(v for v in DISK_VARIANTS if v.name == "restarted")
    with pytest.raises(EngineFault, match="invalid plan"):
        run(_Forgetful, case.requests, case.sizes, restarted, case.answers)

    def unchecked(sizes: EngineSizes) -> FakeExecutor:
        return _Forgetful(sizes, is_checked=False)

    got = run(unchecked, case.requests, case.sizes, restarted, case.answers).answers
    assert got != case.answers
