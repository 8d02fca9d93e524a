"""What ``kvasir quantize`` writes, as the libraries of its formats have it: bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
Options = tuple[str, int | None, int | None, bool | None]
METHODS: dict[str, Options] = {
    "rtn": ("rtn", 4, 128, True),
    "rtn-zeros": ("rtn", 4, 32, False),
    "rtn-8": ("rtn", 8, 64, True),
    "int8": ("int8", None, None, None),
    "fp8": ("fp8", None, None, None),
    "nvfp4": ("nvfp4", None, None, None),
    "mxfp4": ("mxfp4", None, None, None),
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


def quantized(method: str, folder: Path, *options: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors of an origin, and those that were made of it."""
    from safetensors.torch import load_file

    origin = tiny.write_hf(llama(), folder / "origin")
    how = method_named(method, *(options or (None, None, None)))  # type: ignore[arg-type]
    quantize(str(origin), how, folder / "made")
    return tuple(load_file(folder / x / "model.safetensors") for x in ("origin", "made"))  # type: ignore[return-value]


def test_nvfp4_as_compressed_tensors_makes_it(tmp_path: Path) -> None:
    """With the divisor of matrices that read the same: scales bit for bit, codes but for the sign
    of zeros."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

    before, after = quantized("nvfp4", tmp_path)
    config = json.loads((tmp_path / "made/config.json").read_text())["quantization_config"]
    scheme = QuantizationScheme.model_validate(config["config_groups"]["group_0"])
    modules = [x.removesuffix(".weight_packed") for x in after if x.endswith(".weight_packed")]
    assert len(modules) == 21
    for module in modules:
        layer, end = module.rsplit(".", 1)
        shared = next((x for x in ("qkv", ("gate", "up")) if end.split("_")[0] in x), (end[:-5],))
        together = torch.cat([before[f"{layer}.{x}_proj.weight"].flatten() for x in shared])
        divisor = generate_gparam(together.min(), together.max())
        assert torch.equal(after[f"{module}.weight_global_scale"], divisor), module
        w = before[f"{module}.weight"]
        runs = w.reshape(len(w), -1, 16)
        scales, _ = calculate_qparams(
            runs.amin(-1), runs.amax(-1), scheme.weights, global_scale=divisor
        )
        assert torch.equal(after[f"{module}.weight_scale"].float(), scales.float()), module
        state = {"weight": w, "weight_scale": scales.float(), "weight_global_scale": divisor}
        theirs = NVFP4PackedCompressor.compress(state, scheme)["weight_packed"]
        found, wanted = (
            unpack_fp4_from_uint8(x, *w.shape, torch.float32)
            for x in (after[f"{module}.weight_packed"], theirs)
        )
        assert torch.equal(found, wanted), module


def test_nf4_as_bitsandbytes_makes_it(tmp_path: Path) -> None:
    """Bit for bit, and read back as it reads it."""
    functional = pytest.importorskip("bitsandbytes.functional")
    before, after = quantized("nf4", tmp_path)
    names = [x.removesuffix(".absmax") for x in after if x.endswith(".absmax")]
    assert len(names) == 21
    for name in names:
        codes, state = functional.quantize_4bit(before[name], blocksize=64, quant_type="nf4")
        packed = state.as_dict(packed=True)
        assert torch.equal(after[name], codes) and torch.equal(
            after[f"{name}.absmax"], state.absmax
        )
        assert torch.equal(after[f"{name}.quant_map"], packed["quant_map"])
        own = {x.removeprefix(f"{name}."): y for x, y in after.items() if x.startswith(f"{name}.")}
        read = functional.QuantState.from_dict(own, device=torch.device("cpu"))
        assert (read.shape, read.blocksize) == (before[name].shape, 64)
        read.dtype = torch.float32
        expected = functional.dequantize_4bit(after[name], read)
        assert_equal(tmp_path / "made", name.removesuffix(".weight"), expected)


def test_fp8_blocks_as_torch_rounds_them(tmp_path: Path) -> None:
    before, after = quantized("fp8-block", tmp_path)
    names = [x.removesuffix("_scale_inv") for x in after if x.endswith("_scale_inv")]
    assert len(names) == 21
    for name in names:
        w, scales = before[name], after[f"{name}_scale_inv"]
        blocks = w.reshape(len(scales), -1, scales.shape[1], min(128, w.shape[1]))
        assert torch.equal(scales, blocks.abs().amax((1, 3)) / 448)
        each = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[: len(w), : w.shape[1]]
        codes = (w / each).to(torch.float8_e4m3fn)
        assert torch.equal(after[name].view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize("method", ["fp8-block", "nf4"])
def test_transformers_loads_floats(method: str, tmp_path: Path) -> None:
    """It computes NF4 with levels rounded to bf16, the type that the file says."""
    transformers = pytest.importorskip("transformers")
    quantized(method, tmp_path)
    more = {}
    if method == "fp8-block":
        more["quantization_config"] = transformers.FineGrainedFP8Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "made", dtype=torch.float32, **more
    )
    with torch.no_grad():
        expected = model(torch.tensor([PROMPTS[0]])).logits[0].float().numpy()
    found = reference_logits(load(tmp_path / "made"), tuple(PROMPTS[0]))
    bound = BOUND if method == "fp8-block" else 0.02
    assert np.abs(found - expected).max() <= bound * np.abs(expected).max()


def test_awq_as_its_converter_reads_it(tmp_path: Path) -> None:
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert.converters.autoawq")
    _, tensors = quantized("rtn", tmp_path, 4, 32, False, (), "awq")
    converter = converters.AutoAWQConverter(group_size=32)
    scales = {x: y.float() for x, y in tensors.items() if x.endswith("scales")}
    converted = converter.process(tensors | scales)
    args = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group"}
    group = {"targets": ["Linear"], "weights": {**args, "group_size": 32}}
    config = {"format": "pack-quantized", "config_groups": {"group_0": group}}
    modules = [x.removesuffix(".qweight") for x in tensors if x.endswith(".qweight")]
    assert len(modules) == 21
    for module in modules:
        assert_equal(tmp_path / "made", module, decompressed(converted, module, config))


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
