"""Quantized checkpoints: their weights are the f32 values that their formats define, bit for bit,
and what is not read is refused by field, value and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.core.errors import ModelError
from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.exec.cpu.placement import placement
from kvasir.formats.decode import values_of
from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.patterns import pattern_of
from kvasir.weights.quantization.read import method_of
from kvasir.weights.quantization.refused import REFUSED
from kvasir.weights.source import open_model
from tests import tiny
from tests.loading import load, reference_logits
from tests.native import LEVELS, native_logits
from tests.quantized_floats import fp8_blocks
from tests.quantized_kinds import KINDS, llama, qwen2
from tests.quantized_writer import (
    Kind,
    Written,
    gptq,
    in_another_order,
    raw_floats,
    write_quantized,
)
from tests.tiny import TinyModel

PROMPT = tuple((17 * i * i + 5 * i + 3) % tiny.VOCAB for i in range(12))
BOUND = 0.05
"""Share of the largest logit, as of GGUF files (tests/diff/test_native_programs.py)."""


def equal(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", KINDS)
def test_weights_are_those_of_the_format(name: str, tmp_path: Path) -> None:
    written = write_quantized(llama(), tmp_path, KINDS[name])
    source = open_model(tmp_path)
    assert set(source.tensors) == set(written.weights) and len(written.quantized) == 21
    for tensor, expected in written.weights.items():
        info = source.tensors[tensor]
        assert info.shape == expected.shape and equal(values_of(info), expected), tensor
    assert sum(source.tensors[x].n_bytes for x in written.quantized) <= written.n_bytes


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_the_plain_weights(name: str, tmp_path: Path) -> None:
    """The reference executor: equal. The native one: within the bound of what it computes with its
    rounded activations."""
    model = qwen2() if name.endswith(("4", "8")) else llama()
    written = write_quantized(model, tmp_path / "quantized", KINDS[name])
    plain = tiny.write_hf(replace(model, tensors=written.weights), tmp_path / "plain")
    expected = reference_logits(load(plain), PROMPT)
    assert np.array_equal(reference_logits(load(written.folder), PROMPT), expected)
    packed = load(written.folder, "auto")
    expected = reference_logits(packed, PROMPT)
    error = np.abs(native_logits(packed, PROMPT) - expected).max() / np.abs(expected).max()
    assert error <= BOUND
    line = placement(packed.program, packed.binding)
    assert line.startswith(open_model(written.folder).quantization) and "give way" in line


def test_experts_and_settings_of_single_modules(tmp_path: Path) -> None:
    """GPTQModel's dynamic: w2 has 8 bits, w3 stays as it was."""
    four, eight = gptq(4, 32, sym=False), gptq(8, 32, sym=True)

    def store(module: str, w: np.ndarray) -> Any:
        return (eight if module.endswith("w2") else four).store(module, w)

    rules = {"-:.*w3$": {}, r"+:.*\.w2": {"bits": 8, "sym": True}}
    kind = Kind(gptq(4, 32, sym=False, dynamic=rules).config, store,
                (*four.skips, ".w3.", "gate.weight"))  # fmt: skip
    written = write_quantized(tiny.mixtral(), tmp_path, kind)
    source = open_model(tmp_path)
    for tensor, expected in written.weights.items():
        assert equal(values_of(source.tensors[tensor]), expected), tensor
    down = source.tensors["model.layers.0.block_sparse_moe.experts.3.w2.weight"]
    assert down.format == "QG8_32"
    loaded = load(tmp_path, "auto")
    assert native_logits(loaded, PROMPT).shape == (len(PROMPT), tiny.VOCAB)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_biases_of_zeros_that_no_model_has(value: float, tmp_path: Path) -> None:
    """Older writers of GPTQ give every module one."""
    kind = KINDS["gptq-4"]

    def store(module: str, w: np.ndarray) -> Any:
        stored = kind.store(module, w)
        bias = np.full(len(w), value, np.float32)
        stored.tensors[f"{module}.bias"] = raw_floats(bias, "F16")
        return stored

    write_quantized(llama(), tmp_path, replace(kind, store=store))
    if value:
        with pytest.raises(ModelError, match=r"21 unexpected: .*\.bias"):
            load(tmp_path)
    else:
        assert load(tmp_path).program.weights


def test_a_config_may_lie_beside(tmp_path: Path) -> None:
    kind = replace(KINDS["gptq-4"], beside="quantize_config.json")
    write_quantized(llama(), tmp_path, kind)
    assert open_model(tmp_path).quantization == "GPTQ, 4 bits, groups of 32"


@pytest.mark.parametrize("name", ["compression_config", "text_config"])
def test_a_config_may_have_another_name(name: str, tmp_path: Path) -> None:
    """The first files of compressed-tensors, and models that keep it with their text's."""
    write_quantized(llama(), tmp_path, KINDS["pack-4"])
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    said = config.pop("quantization_config")
    config[name] = said if name == "compression_config" else {"quantization_config": said}
    path.write_text(json.dumps(config))
    assert open_model(tmp_path).quantization == "compressed-tensors, int4 by group of 32"


def test_a_cache_alone_may_be_quantized(tmp_path: Path) -> None:
    """Then weights are as they are, and the cache is what is asked for."""
    tiny.write_hf(llama(), tmp_path)
    path = tmp_path / "config.json"
    said = {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": []}
    said |= {"kv_cache_scheme": {"num_bits": 8, "type": "float"}, "format": "dense"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": said}))
    assert open_model(tmp_path).quantization == "compressed-tensors, of the KV cache alone"
    assert load(tmp_path).program.weights


def changed(folder: Path, **fields: object) -> None:
    """Sets fields of the quantization config; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    said = config["quantization_config"] | fields
    config["quantization_config"] = {x: value for x, value in said.items() if value is not None}
    path.write_text(json.dumps(config))


REFUSALS: dict[str, tuple[str, dict[str, object], str]] = {
    **{x: ("gptq-4", {"quant_method": x}, f"quant_method '{x}' is not supported") for x in REFUSED},
    "unknown": (
        "gptq-4",
        {"quant_method": "new"},
        "'new' is not supported: of those are read gptq",
    ),
    "no method": ("gptq-4", {"quant_method": None}, "quant_method 'None' is not supported"),
    "marlin": ("gptq-4", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not"),
    "is_marlin": ("gptq-4", {"is_marlin_format": True}, "is_marlin_format is True"),
    "bits": ("gptq-4", {"bits": 5}, "bits is 5, expected one of 2, 3, 4, 8"),
    "bits as text": ("gptq-4", {"bits": "4"}, "bits is '4'"),
    "bits as truth": ("gptq-4", {"bits": True}, "bits is True"),
    "group": ("gptq-4", {"group_size": 48}, "group_size is 48, expected -1 or a multiple of 32"),
    "huge group": ("gptq-4", {"group_size": 1 << 40}, "group_size is 1099511627776"),
    "other group": ("gptq-4", {"group_size": 64}, r"has scales of shape \[4, "),
    "pack_dtype": ("gptq-4", {"pack_dtype": "int64"}, "pack_dtype is 'int64'"),
    "rotation": ("gptq-4", {"rotation": "hadamard"}, "rotation is 'hadamard'"),
    "sym as number": ("gptq-4", {"sym": 1}, "sym is 1, expected one of True, False"),
    "left out": ("gptq-4", {"dynamic": {"-:.*q_proj": {}}}, "says that it is not"),
    "pattern": ("gptq-4", {"dynamic": {"(?=a).*": {}}}, "looks around"),
    "patterns": ("gptq-4", {"dynamic": {f"x{i}": {} for i in range(65)}}, "65 patterns"),
    "gemv_fast": ("awq-gemm", {"version": "gemv_fast"}, "version 'gemv_fast' is not supported"),
    "awq version": ("awq-gemm", {"version": "new"}, "version is 'new', expected gemm or gemv"),
    "awq bits": ("awq-gemm", {"bits": 8}, "bits is 8"),
    "zero_point": ("awq-gemm", {"zero_point": False}, "zero_point is False"),
    "llm-awq": ("awq-gemm", {"backend": "llm-awq"}, "backend is 'llm-awq'"),
    "transform": ("pack-4", {"transform_config": {"a": 1}}, "transform_config is {'a': 1}"),
    "sparsity": ("pack-4", {"sparsity_config": {"format": "sparse-24"}}, "sparse weights are not"),
    "marlin-24": ("pack-4", {"format": "marlin-24"}, "format 'marlin-24' is not supported"),
    "no groups": ("pack-4", {"config_groups": {}}, "config_groups is None"),
    "ignored": ("pack-4", {"ignore": ["re:.*q_proj"]}, "quantization_config ignores it"),
    "ignore": ("pack-4", {"ignore": "lm_head"}, "ignore is 'lm_head', expected a list of names"),
    "long pattern": ("pack-4", {"ignore": ["re:" + "a" * 300]}, "longer than 256 bytes"),
    "repeats": ("pack-4", {"ignore": ["re:(a{64}){64}"]}, "more than 128 characters"),
    "block": ("fp8-blocks", {"weight_block_size": [128, 100]}, "multiples of 32 inputs"),
    "blocks": ("fp8-blocks", {"weight_block_size": 128}, "weight_block_size is 128"),
    "no block": ("fp8-blocks", {"weight_block_size": None}, "expected one number or 256"),
    "fmt": ("fp8-blocks", {"fmt": "e5m2"}, "fmt is 'e5m2', expected one of e4m3"),
    "quant_algo": ("modelopt-fp8", {"quant_algo": "W4A8"}, "quant_algo is 'W4A8'"),
    "storage": ("bnb-nf4", {"bnb_4bit_quant_storage": "bfloat16"}, "storage is 'bfloat16'"),
    "neither": ("bnb-nf4", {"load_in_4bit": False}, "load_in_4bit is False"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    """A tiny checkpoint of a kind, written once."""
    made: dict[str, Written] = {}

    def folder(kind: str) -> Written:
        if kind not in made:
            model = replace_layers(llama(), 1)
            made[kind] = write_quantized(model, tmp_path_factory.mktemp(kind), KINDS[kind])
        return made[kind]

    return folder


def replace_layers(model: TinyModel, n: int) -> TinyModel:
    config = {**model.config, "num_hidden_layers": n}
    keep = {x: y for x, y in model.tensors.items() if not _is_layer(x, n)}
    return replace(model, config=config, tensors=keep)


def _is_layer(name: str, first: int) -> bool:
    parts = name.split(".")
    return parts[1] == "layers" and int(parts[2]) >= first


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_read_is_refused(case: str, folders: Callable[[str], Written]) -> None:
    kind, fields, message = REFUSALS[case]
    folder = folders(kind).folder
    before = (folder / "config.json").read_text()
    try:
        changed(folder, **fields)
        with pytest.raises(ModelError, match=message) as caught:
            open_model(folder)
    finally:
        (folder / "config.json").write_text(before)
    assert str(folder) in caught.value.message


@pytest.mark.parametrize("model", [llama, qwen2])
def test_inputs_in_another_order(model: Callable[[], TinyModel], tmp_path: Path) -> None:
    """Sorted columns meet sorted inputs: logits of the plain weights but for the order of sums."""
    kind = in_another_order(gptq(4, 32, sym=False, desc_act=True))
    written = write_quantized(model(), tmp_path / "quantized", kind)
    plain = tiny.write_hf(replace(model(), tensors=written.weights), tmp_path / "plain")
    expected = reference_logits(load(plain), PROMPT)
    loaded = load(written.folder)
    gathers = [op for op in loaded.program.ops if op.kind == "gather_columns"]
    assert len(gathers) == 3 * 4  # of a layer: before q, k and v, before o, gate and up, down
    error = np.abs(reference_logits(loaded, PROMPT) - expected).max() / np.abs(expected).max()
    assert error <= 1e-5
    packed = load(written.folder, "auto")
    wanted = reference_logits(packed, PROMPT)
    found = native_logits(packed, PROMPT)
    assert np.abs(found - wanted).max() / np.abs(wanted).max() <= BOUND
    for level in LEVELS:
        assert np.array_equal(native_logits(packed, PROMPT, level, threads=2), found), level


@pytest.mark.parametrize("other", ["v_proj", "up_proj"])
def test_inputs_in_several_orders_are_refused_by_name(other: str, tmp_path: Path) -> None:
    """Of matrices that are computed as one."""
    kind, plain = in_another_order(gptq(4, 32, sym=True)), gptq(4, 32, sym=True)

    def store(module: str, w: np.ndarray) -> Any:
        return (plain if module.endswith(other) else kind).store(module, w)

    write_quantized(llama(), tmp_path, replace(kind, store=store))
    with pytest.raises(ModelError, match=rf"{other}\.weight' take their inputs in different"):
        load(tmp_path)


def test_groups_of_other_sizes_are_refused(tmp_path: Path) -> None:
    write_quantized(llama(), tmp_path, in_another_order(gptq(4, 32, sym=True), sizes=40))
    with pytest.raises(ModelError, match="does not name 32 inputs for each group"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "end", "value", "message"),
    [
        ("gptq-4", "scales", b"\0\x7e", "scales that are not finite"),
        ("gptq-4", "scales", b"\0\x7c", "scales that are not finite"),
        ("pack-4-sym-bf16", "weight_scale", b"\x80\x7f", "scales that are not finite"),
        ("fp8-blocks", "weight", b"\x7f", "codes of NaN"),
        ("fp8-blocks", "weight", b"\xff", "codes of NaN"),
        ("fp8-e8m0", "weight_scale_inv", b"\xff", "not finite"),
        ("nvfp4-modelopt", "weight_scale", b"\x81", "scales below 0"),
        ("nvfp4-modelopt", "weight_scale_2", b"\0\0\0\0", "expected more than 0"),
        ("bnb-nf4", "weight.absmax", b"\0\0\xc0\x7f", "not finite"),
        ("bnb-nf4", "weight.quant_map", b"\0\0\x80\x3f", "other levels than NF4"),
    ],
)
def test_numbers_that_no_weight_has(
    kind: str, end: str, value: bytes, message: str, tmp_path: Path
) -> None:
    """In the first element of a tensor."""

    def store(module: str, w: np.ndarray) -> Any:
        stored = KINDS[kind].store(module, w)
        dtype, shape, data = stored.tensors[f"{module}.{end}"]
        stored.tensors[f"{module}.{end}"] = dtype, shape, value + data[len(value) :]
        return stored

    written = write_quantized(llama(), tmp_path, replace(KINDS[kind], store=store))
    tensors = open_model(tmp_path).tensors
    with pytest.raises(ModelError, match=message):
        values_of(tensors[written.quantized[0]])


def test_a_shape_that_is_not_that_of_the_codes(tmp_path: Path) -> None:
    kind = KINDS["pack-4"]

    def store(module: str, w: np.ndarray) -> Any:
        stored = kind.store(module, w)
        huge = np.array([1 << 40, 1 << 40], "<i8").tobytes()
        stored.tensors[f"{module}.weight_shape"] = "I64", (2,), huge
        return stored

    write_quantized(llama(), tmp_path, replace(kind, store=store))
    with pytest.raises(ModelError, match="impossible weight_shape 1099511627776 x"):
        open_model(tmp_path)


def test_scales_of_e8m0_are_powers_of_two(tmp_path: Path) -> None:
    write_quantized(llama(), tmp_path, fp8_blocks(128, 128, "F8_E8M0"))
    info = open_model(tmp_path).tensors["model.layers.0.mlp.up_proj.weight"]
    assert info.format == "F8_128" and values_of(info).any()


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (".*lm_head", ("lm_head", "model.lm_head.x"), ("model.head",)),
        ("^model\\.layers\\.[0-3]\\.", ("model.layers.2.mlp",), ("model.layers.4.mlp", "x")),
        (".*gate$", ("a.gate", "gate"), ("a.gate_proj", "gat")),
        ("", ("anything", ""), ()),
        ("(?:a|b)+c", ("abac", "bcd"), ("c", "abx")),
    ],
)
def test_patterns_match_as_re_does(pattern: str, yes: tuple[str, ...], no: tuple[str, ...]) -> None:
    made = pattern_of(pattern, "here")
    assert all(map(made.matches, yes)) and not any(map(made.matches, no))


def test_a_pattern_costs_as_much_as_the_name_is_long() -> None:
    """The one that backtracking would never end with."""
    made = pattern_of("(?:a|aa)*b", "here")
    assert not made.matches("a" * 20_000)


LARGER = {
    **{"pack-4-f32": 2.3, "gptq-8": 1.48, "gptq-2": 1.05, "pack-2": 1.1, "fp8-ragged": 1.13},
    **{"fp8-blocks": 1.032, "fp8-bf16-scales": 1.032, "fp8-e8m0": 1.032, "bnb-nf4-nested": 1.1},
}
"""What the packed weight is of the file's bytes where that is not at most 1.03."""
_SAYS_NOTHING = ("g_idx", "weight_shape", "weight.quant_map", "weight.nested_quant_map")


@pytest.mark.parametrize("name", KINDS)
def test_packed_weights_hardly_grow(name: str) -> None:
    """Of a matrix of rows long enough that what is stored once counts little."""
    n, k = 64, 1536
    stored = KINDS[name].store("m", tiny.uniform("matrix", (n, k), 1.0))
    parts = {
        x.removeprefix("m."): TensorInfo(x, dtype, shape, memoryview(data))
        for x, (dtype, shape, data) in stored.tensors.items()
    }
    method = method_of({"quantization_config": KINDS[name].config}, "here")
    assert method is not None
    made = method.weight("m", {x: y for x, y in parts.items() if x not in method.unread})
    assert made is not None and made.shape == (n, k)
    used = [y for x, y in parts.items() if x not in (*_SAYS_NOTHING, *method.unread)]
    in_file = sum(y.n_bytes for y in used if "quant_state" not in y.name)
    layout = LAYOUTS[LAYOUT_OF_FORMAT[made.format]]
    packed = n * (k * layout.bits + layout.row_bits) / 8
    assert packed <= LARGER.get(name, 1.03) * in_file
