"""Heads in the exactness harness: batches, chunks, preemption, forks, replays, the prefix cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.executor import CpuExecutor
from tests import tiny
from tests.draft_variants import DRAFT_VARIANTS, Counted
from tests.exactness import Outcome, Sizes, Variant, baseline, run
from tests.head_toy import head_toy
from tests.headed import METHODS, headed
from tests.request_sets import make_requests, make_sharing_requests
from tests.toy_bundle import Toy

SIZES = Sizes(tiny.VOCAB, max_model_len=128)
REQUESTS = [
    *make_requests(7, tiny.VOCAB, seed=4, max_prompt=60, max_tokens=32),
    *make_sharing_requests(7, tiny.VOCAB, seed=5, max_prompt=60, max_tokens=32),
]
REQUESTS = [structs.replace(request, id=i) for i, request in enumerate(REQUESTS)]


@pytest.fixture(scope="module", params=METHODS)
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return toy_of(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=METHODS[:3])
def reading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Heads that have entries."""
    return toy_of(request.param, tmp_path_factory.mktemp(request.param))


def toy_of(method: str, folder: Path) -> Toy:
    made = headed(method, folder)
    head = json.loads(made.config).get("model")
    return head_toy(made.method, made.path, head)


@pytest.fixture(scope="module")
def expected(toy: Toy) -> Outcome:
    return baseline(toy.native_alone, REQUESTS, SIZES)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("variant", DRAFT_VARIANTS, ids=lambda variant: variant.name)
def test_answers_are_those_of_the_target_alone(
    toy: Toy, expected: Outcome, variant: Variant
) -> None:
    counted = Counted(partial(toy.native, threads=1))
    outcome = run(counted, REQUESTS, SIZES, variant)
    assert outcome.answers == expected.answers
    assert counted.n_verified > 50
    assert (counted.n_named > 0) == variant.overlap


@pytest.mark.parametrize(("name", "n"), [("batch, shuffled", 5), ("trees", 3)])
def test_the_reference_drafts_the_same(toy: Toy, name: str, n: int) -> None:
    variant = next(x for x in DRAFT_VARIANTS if x.name == name)
    counted = [Counted(toy.native), Counted(toy.reference)]
    answers = [run(each, REQUESTS[:n], SIZES, variant).answers for each in counted]
    tokens = [{i: x.tokens for i, x in each.items()} for each in answers]
    assert tokens[0] == tokens[1]
    assert counted[0].drafts == counted[1].drafts
    assert len(counted[0].drafts) > 4 * n


RESTING = tuple(
    replace(variant, drafts=replace(variant.drafts, rests=True))
    for variant in DRAFT_VARIANTS
    if variant.drafts is not None and not variant.disk
)


class Shadowed:
    """Beside each executor another one, whose head reads all steps: what both draft is the same."""

    def __init__(self, make: Callable[[EngineSizes], CpuExecutor]) -> None:
        self._make = make
        self.n_rested = self.n_drafts = 0

    def __call__(self, sizes: EngineSizes) -> CpuExecutor:
        executor, other = self._make(sizes), self._make(sizes)
        run = executor.run

        def both(plan: StepPlan) -> StepResult:
            found = run(plan)
            expected = other.run(structs.replace(plan, follows=None))
            assert found.outputs == expected.outputs
            assert found.drafts == expected.drafts
            self.n_rested += plan.follows is not None
            self.n_drafts += sum(map(len, found.drafts))
            return found

        executor.run = both  # type: ignore[method-assign]
        return executor


@pytest.mark.sampled(5)
@pytest.mark.parametrize("variant", RESTING, ids=lambda variant: variant.name)
def test_who_is_drafted_for_lacks_nothing(
    reading: Toy, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvasir.sched.gaps.IDLE_STEPS", 1)
    free = [request for request in REQUESTS if not request.params.constraint]
    shadowed = Shadowed(partial(reading.native, threads=1))
    outcome = run(shadowed, free, SIZES, variant)
    expected = baseline(reading.native_alone, free, SIZES).answers
    assert outcome.answers == expected
    assert shadowed.n_drafts > 20
    assert shadowed.n_rested > 0 or variant.n_seqs == 16
