"""What a draft program draws beside its best token: native and specification, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from kvasir import _native
from kvasir.core.params import TokenParams
from kvasir.sampling.classical import Role
from kvasir.sampling.reference import SlotState, likeliest, sample_row
from tests.diff.test_sampling import make_logits, make_params
from tests.forms import n_of


@pytest.mark.parametrize("vocab", [1, 2, 16, 65, 1025])
def test_native_equals_reference(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    n_siblings = 0
    for i in range(n_of(60, 300)):
        logits, params = make_logits(rng, vocab), make_params(rng, vocab)
        if i % 2:  # others have none
            params = structs.replace(params, samplers=(), typical_p=1.0)
        native, state, n = _native.Sampler(1, vocab), SlotState(params), int(rng.integers(0, 5))
        native.open(0, params, (), ())
        path = [int(token) for token in rng.integers(0, vocab, 3)]
        expected = sample_row(logits, state, 7, path, role=Role(True, n_siblings=n))
        token, siblings = native.draft(0, logits.copy(), 7, path, n)
        assert (token, siblings) == (expected.token, [x for x, _ in expected.top]), params
        assert len({token, *siblings}) == 1 + len(siblings)
        n_siblings += len(siblings)
        plain = structs.replace(params, n_logprobs=-1)
        drawn = sample_row(logits, SlotState(plain), 7, path)
        assert drawn.token == token, "the best is what is drawn"
    assert vocab == 1 or n_siblings > 5


def test_the_next_best_is_drawn_where_the_best_may_not_be() -> None:
    """So that a sibling is what a target draws whose best is another one."""
    rng = np.random.default_rng(1)
    for temperature in (0.0, 0.7):
        for i in range(20):
            logits = rng.normal(0, 2, 50).astype(np.float32)
            params = TokenParams(seed=i, max_tokens=1, temperature=temperature)
            drawn = sample_row(logits, SlotState(params), 3, role=Role(True, n_siblings=1))
            banned = logits.copy()
            banned[drawn.token] = -np.inf
            assert sample_row(banned, SlotState(params), 3).token == drawn.top[0][0]


@pytest.mark.parametrize("vocab", [1, 2, 16, 65, 1025])
def test_the_likeliest_tokens_of_a_row(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for _ in range(n_of(40, 200)):
        logits, n = make_logits(rng, vocab), int(rng.integers(1, 9))
        assert _native.likeliest(logits, n) == list(likeliest(logits, n))
    assert _native.likeliest(np.full(vocab, np.nan, np.float32), 3) == []
