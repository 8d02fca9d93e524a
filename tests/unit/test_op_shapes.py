"""Operands that do not fit an op are named."""

from __future__ import annotations

import pytest

from kvasir.ir.ops import OPS, ShapeError
from tests.op_cases import OP_CASES

BY_NAME = {case.name: case for case in OP_CASES}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("linear-3-f32", "w is \\(17, 95\\), rows have 96"),
        ("norm-f32-33", "w is \\(17, 95\\), rows have 33 elements"),
        ("lm-head-f32", "w is \\(17, 95\\), expected \\(17, 96\\)"),
    ],
)
def test_misfits_are_named(name: str, message: str) -> None:
    case = BY_NAME[name]
    wrong = [type(case.weights[0][0])("w", (17, 95)), *(w for w, _ in case.weights[1:])]
    with pytest.raises(ShapeError, match=message):
        OPS[case.op.kind].infer(case.op, [v for v, _ in case.inputs], wrong)
