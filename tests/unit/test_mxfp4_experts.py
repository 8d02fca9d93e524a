"""gpt-oss as its authors publish it: experts in blocks of MXFP4, gate and up rows in turns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests import tiny, tiny_moe
from tests.loading import load, reference_logits
from tests.native import native_logits
from tests.quantized_floats import E2M1, nearest
from tests.quantized_writer import Raw, raw_floats, write_raw

PROMPT = tuple((17 * i * i + 5 * i + 3) % tiny.VOCAB for i in range(12))


def blocks_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of [..., k] (codes two a byte, the even elements low; exponents; the values)."""
    runs = rows.reshape(*rows.shape[:-1], -1, 32)
    power = np.floor(np.log2(np.abs(runs).max(axis=-1))) - 2
    scales = np.exp2(power).astype(np.float32)
    codes = nearest(E2M1, runs / scales[..., None])
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    values = (E2M1[codes] * scales[..., None]).reshape(rows.shape)
    return packed.astype(np.uint8), (power + 127).astype(np.uint8), values


def test_logits_are_those_of_the_plain_weights(tmp_path: Path) -> None:
    model = tiny_moe.gpt_oss(
        num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"]
    )
    tensors: dict[str, Raw] = {}
    plain = dict(model.tensors)
    for name, values in model.tensors.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = raw_floats(values, "F32")
            continue
        packed, exponents, found = blocks_of(np.ascontiguousarray(values.swapaxes(1, 2)))
        tensors[f"{name}_blocks"] = "U8", packed.shape, packed.tobytes()
        tensors[f"{name}_scales"] = "U8", exponents.shape, exponents.tobytes()
        plain[name] = np.ascontiguousarray(found.swapaxes(1, 2))
    expected_folder = tiny.write_hf(replace(model, tensors=plain), tmp_path / "plain")
    folder = tiny.write_hf(model, tmp_path / "mxfp4")
    write_raw(folder / "model.safetensors", tensors)
    config = dict(model.config) | {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config))
    expected = reference_logits(load(expected_folder), PROMPT)
    assert np.array_equal(reference_logits(load(folder), PROMPT), expected)
    packed_model = load(folder, "auto")
    formats = packed_model.binding.formats()
    assert formats["layers.1.experts.up"] == "MXFP4"
    wanted = reference_logits(packed_model, PROMPT)
    error = np.abs(native_logits(packed_model, PROMPT) - wanted).max() / np.abs(wanted).max()
    assert error <= 0.05
