"""Ops with a state: what they leave, and that a cut between tokens changes no bit."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.testing import assert_allclose

from kvasir.ir.ops import OPS, ShapeError
from kvasir.ir.program import Op, Value, Weight, freeze
from tests.op_cases import OP_CASES, environment

BY_NAME = {case.name: case for case in OP_CASES}


def test_a_state_is_left_as_its_last_tokens_make_it() -> None:
    case, env = BY_NAME["short-conv"], environment()
    case.run(env)
    rows = case.inputs[0][1]
    assert isinstance(rows, np.ndarray)
    b, _, x = np.split(rows, 3, axis=1)
    assert_allclose(env.states[0].reshape(2, 9), (b * x)[-2:], rtol=1e-6)
    one, parts = environment(), [rows[:1], rows[1:2], rows[2:]]
    weights = [w for _, w in case.weights]
    found = [OPS["short_conv"].reference(case.op, [x], weights, one)[0] for x in parts]
    assert np.array_equal(np.concatenate(found), case.run(environment())[0])
    assert np.array_equal(one.states[0], env.states[0])


@pytest.mark.parametrize(
    ("columns", "n_taps", "shape", "message"),
    [
        (28, 3, (3, 9), "28 columns, expected three equal parts"),
        (27, 1, (1, 9), "n_taps=1, expected 2 to 8"),
        (27, 9, (9, 9), "n_taps=9, expected 2 to 8"),
        (27, 3, (9, 3), r"w is \(9, 3\), expected \(3, 9\)"),
    ],
)
def test_convolutions_that_cannot_be_are_named(
    columns: int, n_taps: int, shape: tuple[int, int], message: str
) -> None:
    op = Op(
        "short_conv", ("x",), ("y",), ("w",), freeze({"layer": 0, "n_taps": n_taps, "gated": True})
    )
    with pytest.raises(ShapeError, match=message):
        OPS["short_conv"].infer(op, [Value("x", ("T", columns), "f32")], [Weight("w", shape)])


@pytest.mark.parametrize(
    "name", ["scan-ssd", "scan-delta", "scan-delta-tiled", "scan-kda", "short-conv-bias"]
)
def test_a_cut_between_tokens_changes_no_bit(name: str) -> None:
    case, whole, parts = BY_NAME[name], environment(), environment()
    expected = case.run(whole)[0]
    arrays, weights = [rows for _, rows in case.inputs], [w for _, w in case.weights]
    assert all(isinstance(rows, np.ndarray) for rows in arrays)
    found = [
        OPS[case.op.kind].reference(case.op, [rows[cut] for rows in arrays], weights, parts)[0]  # type: ignore[index]
        for cut in (slice(0, 2), slice(2, 3), slice(3, None))
    ]
    assert np.array_equal(np.concatenate(found), expected)
    assert np.array_equal(*(env.states[case.op.integer("layer")] for env in (whole, parts)))


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"rule": "rwkv"}, "rule='rwkv', expected one of ssd, delta, kda"),
        ({"n_groups": 3}, "4 heads in 3 groups, expected equally many in each"),
        ({"state_dim": 257}, "state_dim=257, expected 1 to 256"),
        ({"state_dim": 4}, "x has 32 columns, expected 28"),
        ({"rule": "delta"}, "2 inputs and 3 weights, not 3 inputs and 2 weights"),
    ],
)
def test_scans_that_cannot_be_are_named(attrs: dict[str, str | int], message: str) -> None:
    case = BY_NAME["scan-ssd"]
    op = replace(case.op, attrs=freeze({**case.op.attrs, **attrs}))
    values, weights = [value for value, _ in case.inputs], [weight for weight, _ in case.weights]
    with pytest.raises(ShapeError, match=message):
        OPS["linear_scan"].infer(op, values, weights)
