"""Weights found, checked and brought to the program's form without loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvasir.core.errors import ModelError
from kvasir.ir.program import Transform
from kvasir.weights.transforms import RawTensor, apply, from_floats, permute_rope, transposed
from tests import tiny, tiny_latent, tiny_layer_norms, tiny_moe
from tests.gguf_writer import ENCODERS
from tests.loading import load


def test_missing_unexpected_and_misshapen_tensors_are_listed_together(tmp_path: Path) -> None:
    model = tiny.llama()
    tensors = dict(model.tensors)
    del tensors["model.layers.1.mlp.up_proj.weight"], tensors["model.norm.weight"]
    tensors["model.layers.9.mlp.up_proj.weight"] = np.zeros((2, 2), np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1]
    tiny.write_hf(replace(model, tensors=tensors), tmp_path)
    with pytest.raises(ModelError) as caught:
        load(tmp_path)
    message = caught.value.message
    assert "2 missing: model.layers.1.mlp.up_proj.weight, model.norm.weight" in message
    assert "1 of wrong shape: lm_head.weight [319, 64], expected [320, 64]" in message
    assert "1 unexpected: model.layers.9.mlp.up_proj.weight" in message


def test_long_lists_are_cut(tmp_path: Path) -> None:
    model = tiny.llama()
    tiny.write_hf(replace(model, tensors={"x": np.zeros(1, np.float32)}), tmp_path)
    with pytest.raises(ModelError, match=r"30 missing: .* and 18 more"):
        load(tmp_path)


def test_a_copy_of_the_tied_head_is_not_unexpected(tmp_path: Path) -> None:
    model = tiny.gemma3()
    copy = {"lm_head.weight": model.tensors["model.embed_tokens.weight"]}
    tiny.write_hf(replace(model, tensors={**model.tensors, **copy}), tmp_path)
    assert "lm_head" not in load(tmp_path).program.weights


def test_layers_that_guess_further_tokens_are_left_unread(tmp_path: Path) -> None:
    """As many behind the layers of a model as its file says; others are unexpected."""
    model = tiny_moe.glm4_moe(num_nextn_predict_layers=1)
    more = {"model.layers.3.eh_proj.weight": np.zeros((64, 128), np.float32)}
    tiny.write_hf(replace(model, tensors={**model.tensors, **more}), tmp_path / "hf")
    assert len(load(tmp_path / "hf").config.layers) == 3
    tensors = {**model.tensors, "model.layers.3.input_layernorm.weight": np.ones(64, np.float32)}
    guesses = replace(model, tensors=tensors)
    path = tiny.write_gguf_model(guesses, tmp_path / "m.gguf")
    assert len(load(path).config.layers) == 3
    for name, other in (("none", tiny_moe.glm4_moe()), ("llama", tiny.llama())):
        tiny.write_hf(replace(other, tensors={**other.tensors, **more}), tmp_path / name)
    with pytest.raises(ModelError, match=r"1 unexpected: model\.layers\.3\.eh_proj\.weight"):
        load(tmp_path / "none")
    with pytest.raises(ModelError, match=r"1 unexpected: model\.layers\.3\.eh_proj\.weight"):
        load(tmp_path / "llama")


def test_untied_models_need_their_head(tmp_path: Path) -> None:
    model = tiny.llama()
    tensors = {name: x for name, x in model.tensors.items() if name != "lm_head.weight"}
    tiny.write_hf(replace(model, tensors=tensors), tmp_path)
    with pytest.raises(ModelError, match=r"1 missing: lm_head\.weight"):
        load(tmp_path)


def test_plain_weights_are_views_of_the_file(tmp_path: Path) -> None:
    path = tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q4_1")
    bound = load(path).binding["layers.0.v"]
    raw = bound.raw()
    assert (bound.format, raw.shape) == ("Q4_1", (32, 64))
    assert np.shares_memory(raw.data, bound.tensors[0].data)
    assert raw.rows().shape == (32, 64 // 32 * 20)


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_row_order_is_undone_on_packed_rows(format: str, tmp_path: Path) -> None:
    """The packed rows of a permuted matrix, put back, are those of the plain one bit for bit."""
    model = tiny.llama()
    binding = load(tiny.write_gguf_model(model, tmp_path / "m.gguf", format)).binding
    for letter in ("q", "k"):
        plain = model.tensors[f"model.layers.1.self_attn.{letter}_proj.weight"]
        raw = binding[f"layers.1.{letter}"].raw()
        assert raw.format == format
        assert raw.data.tobytes() == ENCODERS[format][1](plain)


def test_gate_and_up_of_one_tensor_are_its_halves(tmp_path: Path) -> None:
    """Of each expert's rows; quantized ones as they are stored."""
    model = tiny_moe.granite_moe_shared()
    folder = load(tiny.write_hf(model, tmp_path)).binding
    part = "model.layers.1.block_sparse_moe.input_linear.weight"
    both = [folder[f"layers.1.experts.{name}"].dequantize() for name in ("gate", "up")]
    assert np.concatenate(both, axis=1).tobytes() == model.tensors[part].tobytes()
    both = [folder[f"layers.1.shared.{name}"].dequantize() for name in ("gate", "up")]
    part = "model.layers.1.shared_mlp.input_linear.weight"
    assert np.concatenate(both).tobytes() == model.tensors[part].tobytes()


@pytest.mark.parametrize("format", ["F32", "BF16", "F16"])
def test_gate_and_up_in_turns_are_told_apart(format: str, tmp_path: Path) -> None:
    """And turned: gpt-oss keeps matrices input by output."""
    model = tiny_moe.gpt_oss()
    part = "model.layers.1.mlp.experts"
    stored = {name: x for name, x in model.tensors.items() if name.startswith(part)}
    binding = load(tiny.write_hf(model, tmp_path, format)).binding
    for index, name in enumerate(("gate", "up")):
        matrix, bias = binding[f"layers.1.experts.{name}"], binding[f"layers.1.experts.{name}_bias"]
        assert (matrix.raw().format, bias.raw().shape) == (format, (6, 32))
        turned = ENCODERS[format][1](stored[f"{part}.gate_up_proj"][..., index::2].swapaxes(1, 2))
        assert matrix.raw().data.tobytes() == turned
        other = ENCODERS[format][1](stored[f"{part}.gate_up_proj_bias"][:, index::2])
        assert bias.raw().data.tobytes() == other
    down = binding["layers.1.experts.down"].raw()
    assert down.data.tobytes() == ENCODERS[format][1](stored[f"{part}.down_proj"].swapaxes(1, 2))


def test_a_vector_may_be_a_matrix_of_one_row(tmp_path: Path) -> None:
    """A bias [1, experts] in folders of ERNIE, a gate [hidden] in GGUF files of Qwen 2."""
    model = tiny_moe.ernie45_moe()
    bias = model.tensors["model.layers.1.mlp.moe_statics.e_score_correction_bias"]
    bound = load(tiny.write_hf(model, tmp_path)).binding["layers.1.choice_bias"]
    assert (bias.shape, bound.dequantize().tolist()) == ((1, 6), bias[0].tolist())
    model = tiny_moe.qwen2_moe()
    gate = model.tensors["model.layers.0.mlp.shared_expert_gate.weight"]
    path = tiny.write_gguf_model(model, tmp_path / "m.gguf")
    bound = load(path).binding["layers.0.shared_gate"]
    assert bound.tensors[0].shape == (64,)
    assert bound.dequantize().tolist() == gate.tolist()


def test_biases_are_permuted_like_rows() -> None:
    bias = np.arange(24, dtype=np.float32)
    permuted = tiny.permute(bias, 3)
    assert permuted.tolist() != bias.tolist()
    assert permute_rope(from_floats(permuted), 3).decode().tolist() == bias.tolist()


@pytest.mark.parametrize("format", ["F32", "Q8_0"])
def test_parts_of_qkv_are_whole_rows(format: str, tmp_path: Path) -> None:
    """From a tensor with a query, a key and a value of each head in turn."""
    model = tiny_layer_norms.gpt_neox()
    fused = model.tensors["gpt_neox.layers.1.attention.query_key_value.weight"]
    heads = fused.reshape(4, 3, 16, 64)
    path = tiny.write_gguf_model(model, tmp_path / "m.gguf", format)
    for number, letter in enumerate("qkv"):
        raw = load(path).binding[f"layers.1.{letter}"].raw()
        assert (raw.format, raw.shape) == (format, (64, 64))
        plain = np.ascontiguousarray(heads[:, number].reshape(64, 64))
        assert raw.data.tobytes() == ENCODERS[format][1](plain)
        hf = load(tiny.write_hf(model, tmp_path / "hf")).binding[f"layers.1.{letter}"]
        np.testing.assert_array_equal(hf.dequantize(), plain)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_columns_become_rows(dtype: str, tmp_path: Path) -> None:
    model = tiny_layer_norms.gpt2()
    binding = load(tiny.write_hf(model, tmp_path, dtype)).binding
    fused = model.tensors["transformer.h.1.attn.c_attn.weight"]
    down = model.tensors["transformer.h.1.mlp.c_proj.weight"]
    tolerance = {"rtol": 2.0**-8 if dtype != "F32" else 0.0, "atol": 1e-7}
    np.testing.assert_allclose(binding["layers.1.k"].dequantize(), fused[:, 64:128].T, **tolerance)
    np.testing.assert_allclose(binding["layers.1.down"].dequantize(), down.T, **tolerance)


def test_columns_of_blocks_stay_where_they_are() -> None:
    tensor = RawTensor("Q8_0", (4, 32), np.zeros(4 * 34, np.uint8))
    with pytest.raises(ModelError, match="stored as Q8_0 cannot be transposed without loss"):
        transposed(tensor)


def test_experts_are_stacked(tmp_path: Path) -> None:
    model = tiny.mixtral()
    bound = load(tiny.write_hf(model, tmp_path)).binding["layers.1.experts.down"]
    names = [f"model.layers.1.block_sparse_moe.experts.{e}.w2.weight" for e in range(4)]
    np.testing.assert_array_equal(bound.dequantize(), np.stack([model.tensors[n] for n in names]))


def test_gemma_norms_add_one_from_hf_and_not_from_gguf(tmp_path: Path) -> None:
    model = tiny.gemma3()
    expected = model.tensors["model.layers.2.self_attn.q_norm.weight"] + np.float32(1)
    for path in (
        tiny.write_hf(model, tmp_path / "hf"),
        tiny.write_gguf_model(model, tmp_path / "m.gguf"),
    ):
        found = load(path).binding["layers.2.q_norm"].dequantize()
        np.testing.assert_array_equal(found, expected)


def test_unknown_transforms_are_refused() -> None:
    with pytest.raises(KeyError, match="shuffle"):
        apply(RawTensor("F32", (1,), np.zeros(4, np.uint8)), (Transform("shuffle"),))


def test_fewer_layers_than_the_file_has_are_refused(tmp_path: Path) -> None:
    """Else a model without its last layers would answer."""
    model = tiny_latent.deepseek_v3()
    short = replace(model, config={**model.config, "num_hidden_layers": 1})
    with pytest.raises(ModelError, match=r"unexpected: model\.layers\.1\.input_layernorm\.weight"):
        load(tiny.write_hf(short, tmp_path / "hf"))
    name = f"model.layers.{'9' * 5000}.x.weight"  # more digits than Python makes a number of
    more = {**model.tensors, name: np.zeros((1, 1), np.float32)}
    with pytest.raises(ModelError, match=r"1 unexpected: model\.layers\.9999"):
        load(tiny.write_hf(replace(model, tensors=more), tmp_path / "long"))
