"""What is refused when a model is loaded, and in which words."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvasir.checkpoints import config_from
from kvasir.checkpoints.loaded import load_model
from kvasir.core.errors import ModelError
from kvasir.models.families.llama import LLAMA
from kvasir.weights.source import open_model
from tests import (
    tiny,
    tiny_encoders,
    tiny_hybrid,
    tiny_latent,
    tiny_layer_norms,
    tiny_scan,
    tiny_state,
)
from tests.tiny import TinyModel


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (tiny_latent.deepseek_v3, {"rope_interleave": False}),
        (tiny_latent.deepseek_v3, {"scoring_func": "softmax"}),
        (tiny_latent.deepseek_v2, {"norm_topk_prob": True}),
        (tiny_layer_norms.falcon, {"alibi": True}),
        (tiny_layer_norms.falcon, {"parallel_attn": False}),
        (tiny_layer_norms.cohere, {"use_qk_norm": True}),
        (tiny_layer_norms.phi, {"qk_layernorm": True}),
        (tiny_state.lfm2, {"conv_bias": True}),
        (tiny_scan.mamba2, {"use_bias": True}),
        (tiny_scan.mamba2, {"hidden_act": "gelu"}),
        (tiny_scan.granite_hybrid, {"mamba_proj_bias": True}),
        (tiny_hybrid.falcon_h1, {"projectors_bias": True}),
        (tiny_hybrid.falcon_h1, {"attention_bias": True}),
        (tiny_hybrid.nemotron_h, {"mlp_bias": True}),
        (tiny_encoders.nomic_bert, {"prenorm": True}),
        (tiny_encoders.bert, {"is_decoder": True}),
        (tiny_encoders.jina_v2, {"feed_forward_type": "reglu"}),
        (tiny_layer_norms.gpt2, {"scale_attn_by_inverse_layer_idx": True}),
        (tiny_layer_norms.starcoder2, {"norm_type": "rms_norm"}),
    ],
)
def test_what_no_block_computes_is_refused_by_name(
    make: Callable[..., TinyModel], field: dict[str, object], tmp_path: Path
) -> None:
    source = open_model(tiny.write_hf(make(**field), tmp_path))
    with pytest.raises(ModelError, match=f"{next(iter(field))} is .* not supported"):
        config_from(source)


@pytest.mark.parametrize("key", LLAMA.harmless)
def test_what_is_harmless_is_refused_with_another_value(key: str, tmp_path: Path) -> None:
    if key in {field.gguf for field in LLAMA.fields.values()}:
        pytest.skip("read")
    model = tiny.llama()
    hf = open_model(tiny.write_hf(model, tmp_path / "hf"))
    gguf = open_model(tiny.write_gguf_model(model, tmp_path / "m.gguf"))
    for source, prefix in ((hf, ""), (gguf, "llama.")):
        other = replace(source, config={**source.config, f"{prefix}{key}": "other"})
        with pytest.raises(ModelError, match=f"{key} is 'other', expected "):
            config_from(other)


def test_a_field_that_nobody_reads_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny.write_hf(tiny.llama(logit_bias=2, use_cache=False, pad=None), tmp_path)
    with caplog.at_level(logging.WARNING, "kvasir.checkpoints"):
        load_model(str(folder))
    assert caplog.messages == [f"{folder}: config.json: nothing reads logit_bias"]


def test_a_refusal_names_the_nearest_family(tmp_path: Path) -> None:
    """By tensors, then fields."""
    model = tiny.qwen3(architectures=["OtherForCausalLM"], loops=3)
    sinks = {"model.layers.1.self_attn.sinks": tiny.uniform("sinks", (4,), 1.0)}
    model = replace(model, tensors={**model.tensors, **sinks})
    lacks = r"Nearest is qwen3, which lacks model.layers.\{\}.self_attn.sinks, loops$"
    with pytest.raises(ModelError, match=lacks):
        load_model(str(tiny.write_hf(model, tmp_path)))


def test_a_refused_gguf_file_names_the_nearest_family(tmp_path: Path) -> None:
    base = open_model(tiny.write_gguf_model(tiny.gemma3(), tmp_path / "m.gguf"))
    other = replace(base, config={**base.config, "general.architecture": "gemma9"})
    with pytest.raises(
        ModelError, match="Nearest is gemma3, which has the same tensors and fields"
    ):
        config_from(other)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"architectures": ["DeepseekV32ForCausalLM"]}, "a sparse indexer"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "a sparse indexer"),
        ({"architectures": ["GlmMoeDsaForCausalLM"]}, "a sparse indexer"),
        ({"architectures": ["OtherForCausalLM"], "index_topk": 2048}, "a sparse indexer"),
        ({"architectures": ["Rwkv7ForCausalLM"]}, "RWKV's recurrence"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "an encoder and a decoder"),
        ({"architectures": ["OtherModel"], "is_encoder_decoder": True}, "an encoder and a decoder"),
        ({"architectures": ["MllamaForConditionalGeneration"]}, "cross-attention"),
        ({"architectures": ["WhisperForConditionalGeneration"]}, "audio"),
        ({"architectures": ["OtherModel"], "text_config": {"audio_config": {"a": 1}}}, "audio"),
        ({"architectures": ["LlavaNextVideoForConditionalGeneration"]}, "video"),
    ],
)
def test_what_no_family_computes_is_refused_by_name(
    config: dict[str, object], what: str, tmp_path: Path
) -> None:
    source = open_model(tiny.write_hf(tiny.llama(**config), tmp_path))
    with pytest.raises(ModelError, match=f"is not supported: it has {what}.*, which nothing"):
        config_from(source)


@pytest.mark.parametrize(
    ("arch", "what"),
    [
        *[(arch, "a sparse indexer") for arch in ("deepseek32", "deepseek4", "glm-dsa")],
        *[(arch, "RWKV's recurrence") for arch in ("rwkv6", "rwkv7", "arwkv7")],
        ("t5", "an encoder and a decoder"),
    ],
)
def test_gguf_files_of_what_no_family_computes_are_refused_by_name(
    arch: str, what: str, tmp_path: Path
) -> None:
    base = open_model(tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf"))
    other = replace(base, config={**base.config, "general.architecture": arch})
    with pytest.raises(ModelError, match=f"is not supported: it has {what}.*, which nothing"):
        config_from(other)
