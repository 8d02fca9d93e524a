"""Two programs over one pool, sampler and KV memory give the answers of the target alone."""

from __future__ import annotations

import pytest

from kvasir.exec.reference import ReferenceExecutor, load_weights
from tests import tiny
from tests.draft_variants import DRAFT_VARIANTS, Counted
from tests.exactness import Sizes, baseline, run
from tests.request_sets import make_requests
from tests.toy_bundle import TOYS, Toy, make_toy

SIZES = Sizes(tiny.VOCAB, max_model_len=128)
FEW = make_requests(8, tiny.VOCAB, seed=4, max_prompt=24, max_tokens=12)


@pytest.fixture(scope="module", params=TOYS)
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make_toy(request.param, tmp_path_factory.mktemp("toy"))


def test_reference(toy: Toy) -> None:
    weights = load_weights(toy.target, toy.binding)
    expected = baseline(lambda sizes: ReferenceExecutor(toy.target, weights, sizes), FEW, SIZES)
    for variant in DRAFT_VARIANTS:
        if variant.name not in ("batch, shuffled", "overlapped, preempted"):
            continue
        counted = Counted(toy.reference)
        got = run(counted, FEW, SIZES, variant).answers
        assert [got[i].tokens for i in range(8)] == [expected.answers[i].tokens for i in range(8)]
        print(counted.n_accepted, counted.n_verified)
