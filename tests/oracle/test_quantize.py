"""What ``kvasir quantize`` writes, as the libraries of its formats have it: bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvasir.quantize.methods import method_named
from kvasir.quantize.quantize import quantize
from tests import tiny
from tests.loading import load, reference_logits
from tests.oracle.cases import PROMPTS
from tests.oracle.test_quantized import BOUND, assert_equal, decompressed
from tests.quantized_kinds import llama

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch", reason="the oracle needs PyTorch: make test-oracle")
METHODS = {
    "rtn": ("rtn", 4, 128, True),
    "rtn-zeros": ("rtn", 4, 32, False),
    "rtn-8": ("rtn", 8, 64, True),
    "int8": ("int8", None, None, None),
    "fp8": ("fp8", None, None, None),
}


@pytest.mark.parametrize("name", METHODS)
def test_folders_as_compressed_tensors_reads_them(name: str, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from safetensors.torch import load_file

    origin = tiny.write_hf(llama(), tmp_path / "origin")
    quantize(str(origin), method_named(*METHODS[name]), tmp_path / "made")
    config = json.loads((tmp_path / "made/config.json").read_text())["quantization_config"]
    tensors = load_file(tmp_path / "made/model.safetensors")
    modules = [x.removesuffix(".weight_scale") for x in tensors if x.endswith(".weight_scale")]
    assert len(modules) == 21
    for module in modules:
        assert_equal(tmp_path / "made", module, decompressed(tensors, module, config))


@pytest.mark.parametrize("name", ["rtn", "rtn-8"])
def test_transformers_loads_folders(name: str, tmp_path: Path) -> None:
    """Of the others it rounds activations, too, and 5.24 makes no room for packed zeros."""
    pytest.importorskip("compressed_tensors")
    from transformers import AutoModelForCausalLM

    origin = tiny.write_hf(llama(), tmp_path / "origin")
    quantize(str(origin), method_named(*METHODS[name]), tmp_path / "made")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([PROMPTS[0]])).logits[0].numpy()
    found = reference_logits(load(tmp_path / "made"), tuple(PROMPTS[0]))
    assert np.abs(found - expected).max() <= BOUND * np.abs(expected).max()


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0", "Q4_1"])
def test_gguf_files_as_its_package_makes_them(format: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    origin = tiny.write_gguf_model(tiny.llama(), tmp_path / "origin.gguf")
    made = tmp_path / "made.gguf"
    quantize(str(origin), method_named(f"gguf:{format}", None, None, None), made)
    plain = {x.name: x for x in gguf.GGUFReader(str(origin)).tensors}
    kind, n_made = gguf.GGMLQuantizationType[format], 0
    for found in gguf.GGUFReader(str(made)).tensors:
        expected = np.asarray(plain[found.name].data)
        if found.tensor_type == kind:
            expected = gguf.quants.quantize(expected.reshape(len(found.data), -1), kind)
            n_made += 1
        assert np.array_equal(np.asarray(found.data).reshape(-1), expected.reshape(-1)), found.name
    assert n_made == 21
