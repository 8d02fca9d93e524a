"""Which experts a token is sent to, how they are weighed, and how many a step meets."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from kvasir.ir.ops import OPS, Call, ShapeError, Sizes
from kvasir.ir.program import Attr, Op, Value, Weight, freeze
from tests.op_cases import environment, routing


def test_route_ties_go_to_the_lowest_id() -> None:
    attrs = freeze(routing(n_experts=4, top_k=2))
    op = Op("route", ("x",), ("ids", "w"), (), attrs)
    logits = np.array([[1, 2, 2, 2], [0, 0, 0, 0]], np.float32)
    ids, weights = OPS["route"].reference(op, [logits], [], environment())
    assert ids.tolist() == [[1, 2], [0, 1]]
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_logits_choose_where_their_sigmoids_are_one() -> None:
    attrs = routing(n_experts=3, top_k=1, score="late_sigmoid", normalize=False)
    op = Op("route", ("x",), ("ids", "w"), (), freeze(attrs))
    ids, weights = OPS["route"].reference(
        op, [np.array([[40, 80, 60]], np.float32)], [], environment()
    )
    assert (ids.tolist(), weights.tolist()) == ([[1]], [[1.0]])


def test_route_ties_among_many_experts() -> None:
    op = Op("route", ("x",), ("ids", "w"), (), freeze(routing(n_experts=128, top_k=8)))
    logits = np.tile(np.array([0, 1], np.float32), (1, 64))
    ids, _ = OPS["route"].reference(op, [logits], [], environment())
    assert ids.tolist() == [[1, 3, 5, 7, 9, 11, 13, 15]]


@pytest.mark.parametrize(
    ("rule", "normalize", "ids", "weights"),
    [("best", True, [1, 0], [2.25, 0.75]), ("best_two", False, [2, 3], [0.75, 1.5])],
)
def test_route_weighs_without_the_bias_that_chooses(
    rule: str, normalize: bool, ids: list[int], weights: list[float]
) -> None:
    """By hand: one group of 1/4 and 3/4 by sigmoid; one of 1/4, which a bias makes 0.7, and 1/2."""
    x = np.log(np.array([[1 / 3, 3, 1 / 3, 1, 1, 1, 1, 1]], np.float32))
    bias = np.array([0, 0, 0.45, 0, 0, 0, 0, 0], np.float32)
    attrs = routing(n_experts=8, top_k=2, score="sigmoid", n_groups=4, scale=3.0)
    attrs |= {"group_score": rule, "normalize": normalize}
    found = OPS["route"].reference(
        Op("route", ("x",), ("i", "w"), ("b",), freeze(attrs)), [x], [bias], environment()
    )
    assert found[0].tolist() == [ids]
    assert_allclose(found[1], [weights], rtol=1e-6)


def test_sixteen_tokens_meet_82_of_128_experts() -> None:
    """128 (1 - (1 - 8/128)^16), where each token is sent to eight."""
    attrs = freeze({"top_k": 8, "epilogue": "none", "act": "none", "bias": False, "per_pair": True})
    op = Op("expert_linear", ("x", "ids"), ("y",), ("w",), attrs)
    for tokens, met in ((0, 0.0), (1, 8.0), (2, 15.5), (16, 82.42)):
        call = Call(op, (), (), (Weight("w", (128, 4, 4)),), Sizes(tokens, 0))
        assert 128 * OPS["expert_linear"].weight_share(call) == pytest.approx(met, abs=0.005)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"n_groups": 3}, "8 experts in 3 groups"),
        ({"top_groups": 2}, "top_groups=2 of 1 groups"),
        ({"n_groups": 4, "top_k": 3}, "top_k=3 of 2 experts"),
        ({"n_groups": 8, "top_k": 1, "group_score": "best_two"}, "groups of one expert"),
        ({"score": "tanh"}, "score='tanh', expected one of softmax, sigmoid, late_sigmoid"),
        ({"group_score": "worst"}, "group_score='worst', expected best or best_two"),
    ],
)
def test_routing_that_cannot_be_is_named(attrs: dict[str, Attr], message: str) -> None:
    op = Op("route", ("x",), ("i", "w"), (), freeze(routing(n_experts=8, top_k=2) | attrs))
    with pytest.raises(ShapeError, match=message):
        OPS["route"].infer(op, [Value("x", ("T", 8), "f32")], [])
