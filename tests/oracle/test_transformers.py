"""The reference executor against ``transformers``, live, in float32.

Bound: 1e-4 of the largest logit. Both sum in float32 or better in different orders; measured
differences stay below 1e-5 of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir.formats.decode import decode
from tests import tiny, tiny_kin
from tests.gguf_hybrid import multiplied
from tests.gguf_latents import joined, with_latents
from tests.gguf_writer import ENCODERS
from tests.loading import load, reference_logits
from tests.oracle.cases import GGUF_MODELS, GOLDEN_MODELS, PROMPTS, VARIANTS
from tests.tiny import TinyModel

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

BOUND = 1e-4
_EXACT = (
    "expert_bias",
    "mlp.gate.weight",
    ".router.weight",
    "router.layer.weight",
    "expert_gate.weight",
    "bias",
)
_EXACT += ("block_sparse_moe.gate.weight", "conv.conv.weight", "feed_forward.gate.weight")
_EXACT += ("mixer.gate.weight", "mlp.gate.wg.weight")
_EXACT += ("router.proj.weight", "conv1d.weight", "A_log", "_coefs.weight")
"""Ends of names of what no format rounds: routers, gates, convolutions, biases."""
_TURNED = tuple(
    f"{part}.experts.{x}_proj" for part in ("mlp", "feed_forward") for x in ("gate_up", "down")
)
"""Input by output, the other way round in GGUF."""
Logits = Callable[[Path, tuple[int, ...]], NDArray[np.float32]]


@pytest.fixture(scope="module")
def torch_logits() -> Logits:
    pytest.importorskip("torch", reason="the oracle needs PyTorch: make test-oracle")
    pytest.importorskip("transformers", reason="the oracle needs transformers: make test-oracle")
    from tests.oracle.torch_logits import logits

    return logits


def assert_close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= BOUND * np.abs(expected).max()
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()


@pytest.mark.parametrize("name", [*GOLDEN_MODELS, *VARIANTS])
@pytest.mark.parametrize("dtype", [None, "float32"], ids=["raw", "fused"])
def test_logits_from_safetensors(
    name: str, dtype: str | None, torch_logits: Logits, tmp_path: Path
) -> None:
    model = (GOLDEN_MODELS.get(name) or VARIANTS[name])()
    folder = tiny.write_hf(model, tmp_path / name)
    for prompt in PROMPTS:
        expected = torch_logits(folder, prompt)
        assert_close(reference_logits(load(folder, dtype), prompt), expected)


def rounded(model: TinyModel, format: str) -> TinyModel:
    """The model with the values of its GGUF file; quantization commutes with row order."""

    def stored(name: str, values: tiny.Array) -> tiny.Array:
        if values.ndim == 1 or name.endswith(_EXACT):
            return values
        if "kv_b_proj" in name:
            return joined(*(stored(part, x) for part, x in with_latents({name: values}).items()))
        is_turned = name.endswith(_TURNED) or (".c_" in name and model.name.startswith("tiny-gpt2"))
        if is_turned and not name.endswith(".turned"):
            return stored(f"{name}.turned", values.swapaxes(-1, -2)).swapaxes(-1, -2)
        raw = np.frombuffer(ENCODERS[format][1](values), np.uint8)
        return decode(format, raw).reshape(values.shape)

    own = multiplied(model.tensors, model.config)
    tensors = {name: stored(name, x) for name, x in own.items()}
    return replace(model, tensors=multiplied(tensors, model.config, -1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("name", GGUF_MODELS)
def test_logits_from_gguf(name: str, format: str, torch_logits: Logits, tmp_path: Path) -> None:
    model = GOLDEN_MODELS[name]()
    path = tiny.write_gguf_model(model, tmp_path / "model.gguf", format)
    folder = tiny.write_hf(rounded(model, format), tmp_path / "hf")
    for prompt in PROMPTS:
        assert_close(reference_logits(load(path), prompt), torch_logits(folder, prompt))


@pytest.mark.parametrize("make", [tiny.gemma3, tiny_kin.gemma2])
def test_gemma_from_gguf(
    make: Callable[..., TinyModel], torch_logits: Logits, tmp_path: Path
) -> None:
    """The format has no field for the attention scale: it is that of the head size."""
    model = make(query_pre_attn_scalar=32)
    path = tiny.write_gguf_model(model, tmp_path / "model.gguf", "Q8_0")
    folder = tiny.write_hf(rounded(model, "Q8_0"), tmp_path / "hf")
    for prompt in PROMPTS:
        assert_close(reference_logits(load(path), prompt), torch_logits(folder, prompt))
