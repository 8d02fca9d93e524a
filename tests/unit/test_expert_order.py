"""Experts whose inputs a checkpoint takes in another order, each in its own (GPTQ's act-order)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from kvasir.checkpoints import build_program, config_from, ignorable
from kvasir.core.errors import ModelError
from kvasir.ir.program import Transform
from kvasir.weights.bind import bind
from kvasir.weights.expert_order import with_expert_order
from kvasir.weights.source import open_model
from tests import tiny
from tests.loading import load, reference_logits
from tests.native import LEVELS, native_logits
from tests.quantized_kinds import SIZES
from tests.quantized_writer import Kind, Stored, gptq, in_another_order, write_quantized
from tests.tiny import TinyModel

PROMPT = tuple((17 * i * i + 5 * i + 3) % tiny.VOCAB for i in range(12))
BOUND = 0.05
"""Share of the largest logit, as of GGUF files (tests/diff/test_native_programs.py)."""
PLAIN = gptq(4, 32, sym=False)
SORTED = in_another_order(gptq(4, 32, sym=False, desc_act=True))


def mixtral() -> TinyModel:
    return tiny.mixtral(**SIZES)


def of_some(is_sorted: Callable[[str], bool]) -> Kind:
    """Modules whose names fit have their inputs in another order."""

    def store(module: str, w: np.ndarray) -> Stored:
        return (SORTED if is_sorted(module) else PLAIN).store(module, w)

    return replace(SORTED, store=store)


@pytest.mark.parametrize("which", ["all", "down", "one expert"])
def test_logits_are_those_of_the_plain_weights(which: str, tmp_path: Path) -> None:
    """But for the order of sums; on every level to the same bits."""
    kinds = {
        "all": SORTED,
        "down": of_some(lambda module: module.endswith(".w2")),
        "one expert": of_some(lambda module: ".experts.2." in module),
    }
    written = write_quantized(mixtral(), tmp_path / "quantized", kinds[which])
    plain = tiny.write_hf(replace(mixtral(), tensors=written.weights), tmp_path / "plain")
    expected = reference_logits(load(plain), PROMPT)
    loaded = load(written.folder)
    gathers = [op for op in loaded.program.ops if op.kind == "gather_pairs"]
    assert len(gathers) == (0 if which == "down" else 2)  # one a layer
    error = np.abs(reference_logits(loaded, PROMPT) - expected).max() / np.abs(expected).max()
    assert error <= 1e-5
    packed = load(written.folder, "auto")
    wanted, found = reference_logits(packed, PROMPT), native_logits(packed, PROMPT)
    assert np.abs(found - wanted).max() / np.abs(wanted).max() <= BOUND
    for level in LEVELS:
        assert np.array_equal(native_logits(packed, PROMPT, level, threads=2), found), level


def without_integers(module: str, w: np.ndarray) -> Any:
    if module.endswith(".w2"):
        return SORTED.store(module, w)
    return Stored({f"{module}.weight": ("F32", w.shape, w.astype("<f4").tobytes())}, w)


REFUSALS: dict[str, tuple[Callable[[], TinyModel], Kind, str]] = {
    "gate and up": (
        mixtral,
        of_some(lambda module: module.endswith(".w3")),
        r"w1\.weight' and '.*w3\.weight' take their inputs in different orders",
    ),
    "floats": (mixtral, replace(SORTED, store=without_integers), "which has no integers"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_computed_is_refused(case: str, tmp_path: Path) -> None:
    model, kind, message = REFUSALS[case]
    write_quantized(model(), tmp_path, kind)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


def test_rows_that_move_are_refused(tmp_path: Path) -> None:
    """No family whose experts are apart in a file has any."""
    source = open_model(write_quantized(mixtral(), tmp_path, SORTED).folder)
    config = config_from(source)
    program = build_program(config, max_positions=128)
    binding = bind(program, source, ignorable(config))
    name = next(name for name in binding.weights if name.endswith("experts.up"))
    weight = structs.replace(binding[name].weight, transforms=(Transform("permute_rope", (4,)),))
    moved = structs.replace(binding[name], weight=weight)
    changed = structs.replace(binding, weights={**binding.weights, name: moved})
    with pytest.raises(ModelError, match="or rows that move are not computed"):
        with_expert_order(program, changed)
