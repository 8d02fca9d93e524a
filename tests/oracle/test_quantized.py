"""Weights of quantized checkpoints against the libraries that write them, bit for bit in f32, and
logits against ``transformers`` on the plain weights."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir.formats.decode import values_of
from kvasir.formats.mapped import TensorTable
from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.gguf_blocks import with_gguf_modules
from kvasir.weights.source import open_model
from tests import tiny
from tests.loading import load, reference_logits
from tests.oracle.cases import PROMPTS
from tests.quantized_kinds import KINDS, llama, qwen2
from tests.quantized_writer import Written, write_quantized
from tests.unit.test_gguf_modules import random_data

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch", reason="the oracle needs PyTorch: make test-oracle")
BOUND = 1e-4
"""Share of the largest logit, as for unquantized models."""
COMPRESSED = [x for x in KINDS if KINDS[x].config.get("quant_method") == "compressed-tensors"]
# Another packing of 3 bits than the library has today: ten a word.
COMPRESSED.remove("pack-3-tens")


def written(kind: str, folder: Path) -> tuple[Written, dict[str, Any]]:
    """A checkpoint, and its tensors."""
    from safetensors.torch import load_file

    found = write_quantized(llama(), folder, KINDS[kind])
    return found, load_file(folder / "model.safetensors")


def ours(folder: Path, name: str) -> NDArray[np.float32]:
    return values_of(open_model(folder).tensors[name])


def modules(found: Written) -> list[str]:
    return [name.removesuffix(".weight") for name in found.quantized]


def assert_equal(folder: Path, module: str, expected: Any) -> None:
    found = ours(folder, f"{module}.weight")
    assert np.array_equal(found, expected.float().numpy()), module


def decompressed(tensors: dict[str, Any], module: str, config: dict[str, Any]) -> Any:
    """By compressed-tensors; scales as f32, in which it then computes."""
    library = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    scheme = quantization.QuantizationScheme.model_validate(config["config_groups"]["group_0"])
    prefix = f"{module}."
    own = {x.removeprefix(prefix): y for x, y in tensors.items() if x.startswith(prefix)}
    if own["weight_scale"].dtype != torch.float8_e4m3fn:
        own["weight_scale"] = own["weight_scale"].float()
    compressor = library.BaseCompressor.get_value_from_registry(config["format"])
    if config["format"] == "nvfp4-pack-quantized":  # in bf16 by the library, but for its codes
        helpers = pytest.importorskip("compressed_tensors.compressors.nvfp4.helpers")
        n, half = own["weight_packed"].shape
        codes = helpers.unpack_fp4_from_uint8(own["weight_packed"], n, 2 * half, torch.float32)
        steps = own["weight_scale"].float() / own["weight_global_scale"]
        return codes * steps.repeat_interleave(16, 1)
    return compressor.decompress(own, scheme)["weight"]


@pytest.mark.parametrize("kind", COMPRESSED)
def test_weights_as_compressed_tensors_has_them(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    found, tensors = written(kind, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    for module in modules(found):
        assert_equal(tmp_path, module, decompressed(tensors, module, config))


def test_weights_of_awq_as_its_converter_has_them(tmp_path: Path) -> None:
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert.converters.autoawq")
    found, tensors = written("awq-gemm", tmp_path)
    converter = converters.AutoAWQConverter(group_size=128)
    scales = {x: y.float() for x, y in tensors.items() if x.endswith("scales")}
    converted = converter.process(tensors | scales)
    args = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group"}
    group = {"targets": ["Linear"], "weights": {**args, "group_size": 128}}
    config = {"format": "pack-quantized", "config_groups": {"group_0": group}}
    for module in modules(found):
        assert_equal(tmp_path, module, decompressed(converted, module, config))


@pytest.mark.parametrize("kind", [x for x in KINDS if x.startswith("bnb")])
def test_weights_as_bitsandbytes_has_them(kind: str, tmp_path: Path) -> None:
    """Its int8 multiplies twice where one scale is rounded here: two units in the last place."""
    functional = pytest.importorskip("bitsandbytes.functional")
    found, tensors = written(kind, tmp_path)
    for module in modules(found):
        weight = tensors[f"{module}.weight"]
        if kind == "bnb-int8":
            expected = functional.int8_vectorwise_dequant(weight, tensors[f"{module}.SCB"]).numpy()
            apart = np.abs(ours(tmp_path, f"{module}.weight") - expected)
            assert (apart <= 2.5e-7 * np.abs(expected)).all()
            continue
        prefix = f"{module}.weight."
        state = {x.removeprefix(prefix): y for x, y in tensors.items() if x.startswith(prefix)}
        quantized = functional.QuantState.from_dict(state, device=torch.device("cpu"))
        quantized.dtype = torch.float32
        assert_equal(tmp_path, module, functional.dequantize_4bit(weight, quantized))


@pytest.mark.parametrize("kind", ["fp8-blocks", "fp8-ragged", "fp8-e8m0", "fbgemm", "modelopt-fp8"])
def test_weights_of_fp8_as_torch_has_them(kind: str, tmp_path: Path) -> None:
    found, tensors = written(kind, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    rows, columns = config.get("weight_block_size", (1, 1 << 16))
    for module in modules(found):
        codes = tensors[f"{module}.weight"].float()
        scale = next(y for x, y in tensors.items() if re.fullmatch(rf"{module}\.weight_scale.*", x))
        scale = scale.float().reshape(scale.shape or (1, 1))
        if len(scale) > 1 or "weight_block_size" in config:
            scale = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
            scale = scale[: codes.shape[0], : codes.shape[1]]
        assert_equal(tmp_path, module, codes * scale)


@pytest.mark.parametrize("kind", ["gptq-4", "gptq-3", "awq-gemv", "fp8-blocks", "nvfp4-modelopt"])
@pytest.mark.parametrize("model", [llama, qwen2])
def test_logits_as_transformers_has_them(kind: str, model: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the oracle needs transformers: make test-oracle")
    from tests.oracle.torch_logits import logits

    found = write_quantized(model(), tmp_path / "quantized", KINDS[kind])
    plain = tiny.write_hf(replace(model(), tensors=found.weights), tmp_path / "plain")
    for prompt in PROMPTS[:2]:
        expected = logits(plain, prompt)
        apart = np.abs(reference_logits(load(found.folder), prompt) - expected)
        assert apart.max() <= BOUND * np.abs(expected).max()


def test_nvfp4_of_gguf_as_its_package_has_it() -> None:
    gguf = pytest.importorskip("gguf")
    data = random_data("NVFP4", 4096)
    info = TensorInfo("w.weight", "NVFP4", (16, 256), memoryview(data))
    made = with_gguf_modules(TensorTable({info.name: info}))["w.weight"]
    kind = gguf.GGMLQuantizationType.NVFP4
    wanted = gguf.quants.dequantize(np.frombuffer(data, np.uint8).reshape(16, -1), kind)
    assert np.array_equal(values_of(made), wanted)
