"""The native executor against the reference, whole programs of every family.

In float32 they differ in the last bits only: 1e-5 of the largest logit. With bf16 or int8
activations such a bit decides now and then whether a value is rounded up or down, and that step
spreads through the layers; ``test_shadow`` compares op by op, without the spread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvasir import _native
from kvasir.core.plan import Row, SlotOpen, StepPlan
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.reference import load_weights
from kvasir.ir.numerics import Q8
from kvasir.ir.ops import Rows
from kvasir.ir.program import FloatArray
from tests import tiny
from tests.loading import GREEDY, Loaded, load, reference_logits, spec_for, whole_prompt
from tests.shadow import Shadow
from tests.tiny import TinyModel

PROMPT = tuple((23 * i + 5) % tiny.VOCAB for i in range(37))
FAMILIES: dict[str, Callable[[], TinyModel]] = {
    "llama": tiny.llama,
    "biases": lambda: tiny.llama(attention_bias=True, mlp_bias=True),
    "mistral": tiny.mistral,
    "mixtral": tiny.mixtral,
    "gemma3": tiny.gemma3,
}
MODES = (
    ("F32", "float32"),
    ("F32", "bfloat16"),
    ("BF16", "auto"),
    ("Q8_0", "auto"),
    ("Q4_0", "auto"),
    ("Q4_1", "auto"),
)


def native(model: Loaded, level: str) -> CpuExecutor:
    settings = CpuSettings(1, level)
    return CpuExecutor(model.program, model.binding, spec_for(model.config), settings)


def native_logits(model: Loaded, level: str) -> FloatArray:
    out = np.zeros((len(PROMPT), model.config.vocab_size), np.float32)
    native(model, level).run(whole_prompt(PROMPT), logits=out)
    return out


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Loaded]:
    folder = tmp_path_factory.mktemp("models")

    def loaded(name: str, format: str, dtype: str) -> Loaded:
        path: Path = folder / f"{name}.{format}.gguf"
        if not path.exists():
            tiny.write_gguf_model(FAMILIES[name](), path, format)
        return load(path, dtype)

    return loaded


@pytest.mark.parametrize(("format", "dtype"), MODES)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits(
    name: str, format: str, dtype: str, make: Callable[[str, str, str], Loaded]
) -> None:
    model = make(name, format, dtype)
    expected = reference_logits(model, PROMPT)
    errors = np.abs(native_logits(model, _native.levels()[-1]) - expected) / np.abs(expected).max()
    assert errors.max() <= (1e-5 if dtype == "float32" else 0.06)
    assert np.median(errors) <= (1e-6 if dtype == "float32" else 5e-3)


@pytest.mark.parametrize(("format", "dtype"), MODES)
@pytest.mark.parametrize("name", FAMILIES)
def test_levels_agree_bit_for_bit(
    name: str, format: str, dtype: str, make: Callable[[str, str, str], Loaded]
) -> None:
    model = make(name, format, dtype)
    first, *others = (native_logits(model, level) for level in _native.levels())
    for other in others:
        np.testing.assert_array_equal(first, other)


def mixed_plan() -> StepPlan:
    """Two chains and a tree, in scattered blocks, some tokens without logits."""
    rows = (
        Row(2, 0, PROMPT[:33], (7, 0, 4), n_logits=1),
        Row(0, 0, PROMPT[5:12], (9,), n_logits=7, parents=(-1, 0, 0, 1, 2, 2, 4)),
        Row(3, 0, PROMPT[:16], (1,), n_logits=3),
    )
    return StepPlan(0, rows, tuple(SlotOpen(row.slot, GREEDY, row.tokens) for row in rows))


PLANS = {"prompt": whole_prompt(PROMPT), "mixed": mixed_plan()}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("format", "dtype"), MODES)
@pytest.mark.parametrize("name", FAMILIES)
def test_shadow(
    name: str, format: str, dtype: str, plan: str, make: Callable[[str, str, str], Loaded]
) -> None:
    """Every op of the native step against its reference on the same inputs."""
    model = make(name, format, dtype)
    weights = load_weights(model.program, model.binding)
    executor = native(model, _native.levels()[-1])
    n_compared = 0
    for step in Shadow(model, executor, weights, PLANS[plan]).steps():
        # Keys and values that the two round to bf16 differently differ by 1/256.
        bound = 4e-3 if step.op.kind == "attention" and dtype != "float32" else 1e-5
        for found, expected in zip(step.native, step.reference, strict=True):
            assert_near(found, expected, bound, f"{step.op.kind} -> {step.op.outs}")
        n_compared += 1
    assert n_compared == len(model.program.ops) - 1


def assert_near(found: Rows, expected: Rows, bound: float, what: str) -> None:
    """int8 values may differ by one step where a quotient lies half way."""
    if isinstance(expected, Q8):
        assert isinstance(found, Q8)
        steps = np.abs(found.data.astype(np.int32) - expected.data)
        assert steps.max() <= 1, what
        assert np.count_nonzero(steps) <= 1e-3 * steps.size, what
        np.testing.assert_allclose(found.scales, expected.scales, rtol=1e-5, err_msg=what)
        return
    assert isinstance(found, np.ndarray)
    error = np.abs(found - expected).max() / max(1, np.abs(expected).max())
    assert error <= bound, f"{what}: {error}"
