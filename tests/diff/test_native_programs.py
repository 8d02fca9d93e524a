"""The native executor computes what the reference executor computes: every family, format, mode
and level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvasir.exec.cpu import place_weights
from kvasir.exec.cpu.passes import lower_passes
from kvasir.ir.program import Op
from tests import tiny, tiny_latent, tiny_layer_norms
from tests.loading import Loaded, load, reference_logits
from tests.native import LEVELS, native_logits
from tests.tiny import TinyModel

FAMILIES = (
    *(tiny.llama, tiny.mistral, tiny.mixtral, tiny.gemma3, tiny.qwen2, tiny.qwen3),
    *(tiny_layer_norms.starcoder2, tiny_layer_norms.phi, tiny_layer_norms.gpt2),
    *(tiny_latent.deepseek_v2, tiny_latent.deepseek_v3),
)
PROMPT = tuple((17 * i * i + 5 * i + 3) % tiny.VOCAB for i in range(40))

# Share of the largest logit. float32: the order of sums alone (measured 2e-6). bfloat16 and int8:
# a value on the edge between two roundings may fall to either side, and later layers see that
# (measured 4.4 %).
BOUNDS = {"float32": 2e-5, "bfloat16": 0.04, "auto": 0.05}


def files(family: Callable[[], TinyModel], folder: Path) -> list[tuple[str, Path]]:
    """(mode, model file) of everything a family is tested with."""
    hf = tiny.write_hf(family(), folder / "hf")
    found = [("float32", hf), ("bfloat16", hf)]
    for format in ("Q8_0", "Q4_0", "Q4_1"):
        if family in (tiny.llama, tiny.mixtral, tiny_layer_norms.starcoder2):
            found.append(
                ("auto", tiny.write_gguf_model(family(), folder / f"{format}.gguf", format))
            )
    return found


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_native_equals_reference(family: Callable[[], TinyModel], tmp_path: Path) -> None:
    for mode, path in files(family, tmp_path):
        model = load(path, mode)
        expected, found = reference_logits(model, PROMPT), native_logits(model, PROMPT)
        error = np.abs(found - expected).max() / np.abs(expected).max()
        assert error <= BOUNDS[mode], (mode, path.name, error)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_levels_and_threads_give_equal_bits(
    family: Callable[[], TinyModel], tmp_path: Path
) -> None:
    for mode, path in files(family, tmp_path):
        model = load(path, mode)
        expected = native_logits(model, PROMPT, "scalar", threads=1)
        for level in LEVELS:
            for threads in (1, 2, 3):
                found = native_logits(model, PROMPT, level, threads)
                assert np.array_equal(found, expected), (mode, path.name, level, threads)


def test_int8_blocks_beside_items_of_many_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 96 columns on one thread, whose items of a gated linear could have 32 tiles: 256
    columns. A cast of its own sees whole rows."""
    config = tiny.llama(intermediate_size=1728)
    raw = load(tiny.write_gguf_model(config, tmp_path / "m.gguf", "Q8_0"))

    def lowered() -> Loaded:
        formats = raw.binding.formats()
        program = lower_passes(raw.program, dtype="auto", formats=formats, act_block=96)
        return replace(raw, program=program)

    def gives(op: Op, dtype: str, block: int) -> bool:
        return op.kind == "norm"

    together = lowered()
    monkeypatch.setattr(place_weights, "_gives", gives)
    apart = lowered()
    blocks = {value.block for value in together.program.values.values()}
    assert 96 in blocks
    assert len(apart.program.ops) > len(together.program.ops)
    expected = native_logits(apart, PROMPT, threads=1)
    assert np.array_equal(native_logits(together, PROMPT, threads=1), expected)
