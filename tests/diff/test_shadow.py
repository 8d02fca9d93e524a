"""Every op of a native step against its reference on the same inputs: no rounding spreads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvasir.core.plan import SlotOpen, StepPlan
from kvasir.exec.reference import load_weights
from kvasir.ir.numerics import Q8, dequantize_rows
from kvasir.ir.ops import Rows
from tests import tiny, tiny_moe
from tests.loading import GREEDY, Loaded, load, whole_prompt
from tests.native import native
from tests.planned import placed, step_plan
from tests.shadow import Shadow
from tests.tiny import TinyModel

Make = Callable[[str, str, str], Loaded]

PROMPT = tuple((23 * i + 5) % tiny.VOCAB for i in range(37))
FAMILIES: dict[str, Callable[[], TinyModel]] = {
    "llama": tiny.llama,
    "biases": lambda: tiny.llama(attention_bias=True, mlp_bias=True),
    "mistral": tiny.mistral,
    "mixtral": tiny.mixtral,
    "gemma3": tiny.gemma3,
    "gpt-oss": tiny_moe.gpt_oss,
    "qwen2_moe": tiny_moe.qwen2_moe,
    "glm4_moe": tiny_moe.glm4_moe,
}
MODES = (
    ("F32", "float32"),
    ("F32", "bfloat16"),
    ("BF16", "auto"),
    ("Q8_0", "auto"),
    ("Q4_0", "auto"),
    ("Q4_1", "auto"),
)


def mixed_plan() -> StepPlan:
    """Two chains and a tree, in scattered blocks, some tokens without logits."""
    rows = (
        placed(2, 0, PROMPT[:33], ((7, 0, 4),), n_logits=1),
        placed(0, 0, PROMPT[5:12], ((9,),), n_logits=7, parents=(-1, 0, 0, 1, 2, 2, 4)),
        placed(3, 0, PROMPT[:16], ((1,),), n_logits=3),
    )
    return step_plan(0, rows, tuple(SlotOpen(row.slot, GREEDY, row.tokens) for row, _ in rows))


PLANS = {"prompt": whole_prompt(PROMPT), "mixed": mixed_plan()}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("models")

    def loaded(name: str, format: str, dtype: str) -> Loaded:
        path: Path = folder / f"{name}.{format}.gguf"
        if not path.exists():
            tiny.write_gguf_model(FAMILIES[name](), path, format)
        return load(path, dtype)

    return loaded


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("format", "dtype"), MODES)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_op(name: str, format: str, dtype: str, plan: str, make: Make) -> None:
    model = make(name, format, dtype)
    weights = load_weights(model.program, model.binding)
    n_compared = 0
    for step in Shadow(model, native(model, threads=1), weights, PLANS[plan]).steps():
        # Keys and values that the two round to bf16 differently differ by 1/256, probabilities,
        # which the reference does not round, by 1/512.
        bound = 6e-3 if step.op.kind == "attention" and dtype != "float32" else 1e-5
        for found, expected in zip(step.native, step.reference, strict=True):
            what = f"{step.op.kind} -> {step.op.outs}"
            if step.op.kind == "attention" and isinstance(expected, Q8):
                assert isinstance(found, Q8)
                found, expected = dequantize_rows(found), dequantize_rows(expected)
                bound += 1 / 127
            assert_near(found, expected, bound, what, step.op.attrs.get("to") == "bf16")
        n_compared += 1
    assert n_compared == len(model.program.ops) - 1


def assert_near(
    found: Rows, expected: Rows, bound: float, what: str, is_bf16: bool = False
) -> None:
    """int8 and bf16 values may differ by one step where a number lies half way."""
    if isinstance(expected, Q8):
        assert isinstance(found, Q8)
        steps = np.abs(found.data.astype(np.int32) - expected.data)
        assert steps.max() <= 1, what
        assert np.count_nonzero(steps) <= 1e-3 * steps.size, what
        np.testing.assert_allclose(found.scales, expected.scales, rtol=1e-5, err_msg=what)
        if not steps.any():
            np.testing.assert_array_equal(found.sums, expected.sums, err_msg=what)
        return
    assert isinstance(found, np.ndarray)
    error = np.abs(found - expected) / max(1, np.abs(expected).max())
    if is_bf16:
        assert np.count_nonzero(error > bound) <= 1e-3 * error.size, what
        bound += 2**-8
    assert error.max() <= bound, f"{what}: {error.max()}"
