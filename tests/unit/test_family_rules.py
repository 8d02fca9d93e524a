"""Rules of single families that no entry of their files can hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvasir.checkpoints import config_from
from kvasir.core.errors import ModelError
from kvasir.models.spec import NO_ROPE, ROPE
from kvasir.weights.source import open_model
from tests import (
    tiny,
    tiny_kimi,
    tiny_kin,
    tiny_llama4,
)
from tests.loading import load
from tests.tiny import TinyModel


def test_gemma3_of_62_layers_scales_attention_by_its_width(tmp_path: Path) -> None:
    """The 27B model: no field of its GGUF file says so."""
    model = tiny.gemma3(num_hidden_layers=62, layer_types=None)
    source = open_model(tiny.write_gguf_model(model, tmp_path / "m.gguf"))
    assert config_from(source).attention_scale == (64 // 4) ** -0.5
    small = open_model(tiny.write_gguf_model(tiny.gemma3(), tmp_path / "small.gguf"))
    assert config_from(small).attention_scale == 32**-0.5


def test_fields_of_kimi_linear_may_be_nested_or_not(tmp_path: Path) -> None:
    """As in its own folders, or as ``transformers`` saves them."""
    nested = tiny_kimi.kimi_linear()
    sizes = {"linear_head_dim": 32, "linear_num_heads": 4, "linear_conv_kernel_dim": 4}
    types = ["linear_attention", "full_attention", *2 * ["linear_attention"]]
    flat = tiny_kimi.kimi_linear(linear_attn_config=None, layer_types=types, **sizes)
    found = [config_from(open_model(tiny.write_hf(x, tmp_path / x.name))) for x in (nested, flat)]
    assert found[0] == found[1]
    assert [layer.attends for layer in found[0].layers] == [False, True, False, False]
    other = tiny_kimi.kimi_linear(linear_attn_config={**tiny_kimi.NETS, "gate_rank": 3})
    config = config_from(open_model(tiny.write_hf(other, tmp_path / "other")))
    assert config.unread == ("linear_attn_config.gate_rank",)
    silent = tiny_kimi.kimi_linear(linear_attn_config=sizes)
    with pytest.raises(ModelError, match="layer_types is None, expected which layers attend"):
        config_from(open_model(tiny.write_hf(silent, tmp_path / "silent")))


def test_llama4_of_a_folder_that_sees_is_its_language_model(tmp_path: Path) -> None:
    model = tiny_llama4.llama4()
    alone = load(tiny.write_hf(model, tmp_path / "alone"))
    seeing = load(tiny.write_hf(tiny_llama4.as_seeing(model), tmp_path / "seeing"))
    assert not seeing.config.sees
    assert seeing.program.ops == alone.program.ops
    for name in ("embed", "lm_head", "layers.1.experts.up"):
        values, expected = (x.binding[name].dequantize() for x in (seeing, alone))
        assert np.array_equal(values, expected)


@pytest.mark.parametrize(("n_experts", "norm"), [(128, "none"), (6, "bare")])
def test_gguf_files_of_llama4_with_128_experts_norm_no_heads(
    n_experts: int, norm: str, tmp_path: Path
) -> None:
    """Maverick: no field of its GGUF file says so."""
    model = tiny_llama4.llama4_long(num_local_experts=n_experts)
    source = open_model(tiny.write_gguf_model(model, tmp_path / "m.gguf"))
    assert config_from(source).block.qk_norm == norm


def test_a_temperature_may_be_said_as_a_number(tmp_path: Path) -> None:
    """As in the first files of Llama 4."""
    for said, expected in ((4, 0.3), (True, 0.3), (0, 0.0), (False, 0.0)):
        model = tiny_llama4.llama4(attn_temperature_tuning=said)
        config = config_from(open_model(tiny.write_hf(model, tmp_path / str(said))))
        rope = config.ropes.get(config.layers[1].rope)
        assert (rope.query_beta if rope is not None else 0.0) == expected


def ropes(model: TinyModel, folder: Path) -> list[str]:
    config = config_from(open_model(tiny.write_hf(model, folder)))
    return [layer.rope for layer in config.layers]


def test_layers_without_rope(tmp_path: Path) -> None:
    """As said for each, every so many-th, or those that see everything where others slide."""
    said = tiny_kin.smollm3()
    assert ropes(said, tmp_path / "said") == [ROPE, ROPE, ROPE, NO_ROPE, ROPE]
    every = tiny_kin.smollm3(no_rope_layers=None, no_rope_layer_interval=2)
    assert ropes(every, tmp_path / "every") == [ROPE, NO_ROPE, ROPE, NO_ROPE, ROPE]
    slides = tiny_kin.exaone4()
    assert ropes(slides, tmp_path / "slides") == [ROPE, ROPE, ROPE, NO_ROPE]
    full = tiny_kin.exaone4(sliding_window=None, layer_types=["full_attention"] * 4)
    assert ropes(full, tmp_path / "full") == [ROPE] * 4
