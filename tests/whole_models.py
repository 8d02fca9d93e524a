"""A tiny model of each family, whose files have every field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests import (
    tiny,
    tiny_encoders,
    tiny_gemma,
    tiny_gemma3n,
    tiny_gemma4_vision,
    tiny_gemma_vision,
    tiny_hybrid,
    tiny_internvl,
    tiny_kimi,
    tiny_kin,
    tiny_latent,
    tiny_layer_norms,
    tiny_llama4,
    tiny_llava,
    tiny_moe,
    tiny_pixtral,
    tiny_qwen_vl,
    tiny_rope,
    tiny_scan,
    tiny_state,
    tiny_vision,
)
from tests.gguf_mmproj import text_of
from tests.tiny import TinyModel

_TYPES = ["full_attention", "full_attention", "sliding_attention"]
_WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
_SECTIONS = {"mrope_section": [4, 2, 2]}
_DELTA: dict[str, Any] = {
    "full_attention_interval": 3,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": None,
    "rope_theta": 3000.0,
    "partial_rotary_factor": 0.5,
}
MODELS: Mapping[str, Callable[[], TinyModel]] = {
    "llama": lambda: tiny.llama(attention_bias=True, mlp_bias=True),
    "mistral": tiny.mistral,
    "mixtral": lambda: tiny.mixtral(sliding_window=8),
    "qwen2": lambda: tiny.qwen2(layer_types=_TYPES, **_WINDOWS),
    "qwen3": lambda: tiny.qwen3(attention_bias=True, layer_types=_TYPES, **_WINDOWS),
    "gemma3": lambda: tiny.gemma3(attention_bias=True, sliding_window_pattern=3),
    "seed_oss": lambda: tiny_kin.seed_oss(mlp_bias=False),
    "granite": lambda: tiny_kin.granite(attention_bias=True, mlp_bias=True),
    "smollm3": lambda: tiny_kin.smollm3(
        attention_bias=True,
        mlp_bias=True,
        no_rope_layer_interval=3,
        layer_types=["full_attention"] * 5,
        max_window_layers=2,
    ),
    "ernie4_5": tiny_kin.ernie45,
    "ministral": tiny_kin.ministral,
    "exaone4": lambda: tiny_kin.exaone4(sliding_window_pattern="LLLG"),
    "qwen3_moe": lambda: tiny_kin.qwen3_moe(
        attention_bias=True, use_sliding_window=True, sliding_window=8
    ),
    "qwen2_moe": lambda: tiny_moe.qwen2_moe(
        num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3], qkv_bias=False
    ),
    "granite_moe": lambda: tiny_moe.granite_moe_shared(attention_bias=True),
    "ernie4_5_moe": lambda: tiny_moe.ernie45_moe(use_bias=True, moe_layer_end_index=2),
    "gpt_oss": lambda: tiny_moe.gpt_oss(attention_bias=False, rope_parameters=None),
    "olmoe": lambda: tiny_moe.olmoe(norm_topk_prob=True, attention_bias=True),
    "minimax_m2": lambda: tiny_moe.minimax_m2(partial_rotary_factor=0.75),
    "glm4_moe": lambda: tiny_moe.glm4_moe(
        first_k_dense_replace=2,
        norm_topk_prob=False,
        partial_rotary_factor=0.25,
        num_nextn_predict_layers=1,
    ),
    "exaone_moe": lambda: tiny_moe.exaone_moe(
        norm_topk_prob=False,
        num_nextn_predict_layers=1,
        sliding_window_pattern="LLLG",
        first_k_dense_replace=2,
        mlp_layer_types=["dense", "dense", "sparse", "sparse"],
    ),
    "hunyuan_v1_moe": lambda: tiny_moe.hunyuan_moe(tie_word_embeddings=True),
    "deepseek_v2": tiny_latent.deepseek_v2,
    "deepseek_v3": lambda: tiny_latent.deepseek_v3(
        norm_topk_prob=False, num_nextn_predict_layers=1
    ),
    "glm4_moe_lite": lambda: tiny_latent.glm4_moe_lite(
        norm_topk_prob=False,
        num_nextn_predict_layers=1,
        mlp_layer_types=["dense", "dense", "sparse"],
    ),
    "gemma": lambda: tiny_kin.gemma(attention_bias=True),
    "gemma2": lambda: tiny_kin.gemma2(attention_bias=True),
    "gemma4": lambda: tiny_gemma.gemma4_moe(
        attention_bias=True, num_hidden_layers=4, layer_types=tiny_gemma.TYPES[:4]
    ),
    "olmo2": lambda: tiny_rope.olmo2(attention_bias=True),
    "olmo3": lambda: tiny_rope.olmo3(attention_bias=True),
    "ministral3": tiny_rope.ministral3,
    "hunyuan_v1_dense": lambda: tiny_rope.hunyuan_dense(use_qk_norm=True),
    "minicpm": lambda: tiny_rope.minicpm(attention_bias=True),
    "phi3": tiny_rope.phi3,
    "glm": tiny_rope.glm,
    "glm4": tiny_rope.glm4,
    "starcoder2": lambda: tiny_layer_norms.starcoder2(sliding_window=8, use_bias=False),
    "cohere": lambda: tiny_layer_norms.cohere(attention_bias=True),
    "cohere2": lambda: tiny_layer_norms.cohere2(attention_bias=True, sliding_window_pattern=4),
    "phi": tiny_layer_norms.phi,
    "stablelm": tiny_layer_norms.stablelm,
    "gpt_neox": lambda: tiny_layer_norms.gpt_neox(attention_bias=False),
    "falcon": lambda: tiny_layer_norms.falcon(multi_query=False, num_kv_heads=4, bias=True),
    "falcon_two_norms": tiny_layer_norms.falcon_two_norms,
    "gptj": tiny_layer_norms.gptj,
    "gpt2": tiny_layer_norms.gpt2,
    "lfm2": lambda: tiny_state.lfm2(block_ff_dim=131),
    "lfm2_moe": lambda: tiny_state.lfm2_moe(norm_topk_prob=False),
    "mamba2": lambda: tiny_scan.mamba2(time_step_limit=[0.1, 0.6], tie_word_embeddings=True),
    "qwen3_next": lambda: tiny_scan.qwen3_next(**_DELTA, mlp_only_layers=[3]),
    "qwen3_5": lambda: tiny_scan.qwen3_5(**_DELTA),
    "qwen3_5_moe": lambda: tiny_scan.qwen3_5_moe(**_DELTA),
    "llama4": lambda: tiny_llama4.llama4(attention_bias=True, no_rope_layer_interval=3),
    "kimi_linear": lambda: tiny_kimi.kimi_linear(
        q_lora_rank=32,
        num_expert_group=4,
        topk_group=2,
        moe_renormalize=False,
        num_nextn_predict_layers=1,
        layer_types=["linear_attention", "full_attention", *2 * ["linear_attention"]],
        mlp_layer_types=["dense", "dense", "sparse", "sparse"],
    ),
    "granite_hybrid": lambda: tiny_scan.granite_hybrid(
        position_embedding_type="rope", head_dim=16, time_step_limit=[0.1, 0.6], attention_bias=True
    ),
    "falcon_h1": lambda: tiny_hybrid.falcon_h1(time_step_limit=[0.1, 0.6]),
    "nemotron_h": lambda: tiny_hybrid.nemotron_h_moe(
        layers_block_type=["mamba", "mlp", "attention", "moe"],
        hybrid_override_pattern="M-*E",
        moe_latent_size=48,
        num_nextn_predict_layers=1,
        norm_topk_prob=False,
        tie_word_embeddings=True,
        time_step_limit=[0.1, 0.6],
    ),
    "smolvlm": lambda: tiny_vision.smolvlm(attention_bias=True, mlp_bias=True),
    "qwen2_vl": lambda: tiny_qwen_vl.qwen2_vl(layer_types=_TYPES, **_WINDOWS),
    "qwen2_5_vl": lambda: tiny_qwen_vl.qwen2_5_vl(layer_types=_TYPES, **_WINDOWS),
    "qwen3_vl": lambda: tiny_qwen_vl.qwen3_vl(attention_bias=True),
    "qwen3_vl_moe": lambda: tiny_qwen_vl.qwen3_vl_moe(attention_bias=True),
    "qwen3_vl_moe_saved": lambda: tiny_qwen_vl.qwen3_vl_moe_saved(attention_bias=True),
    "qwen3_5_vl": lambda: tiny_qwen_vl.qwen3_5_vl(**_DELTA, rope_scaling=_SECTIONS),
    "qwen3_5_moe_vl": lambda: tiny_qwen_vl.qwen3_5_moe_vl(**_DELTA, rope_scaling=_SECTIONS),
    "internvl_qwen2": lambda: tiny_internvl.internvl(
        layer_types=_TYPES, tie_word_embeddings=False, **_WINDOWS
    ),
    "internvl_qwen3": lambda: tiny_internvl.internvl_qwen3(
        attention_bias=True, layer_types=_TYPES, **_WINDOWS
    ),
    "llava_onevision": lambda: tiny_llava.llava_onevision(layer_types=_TYPES, **_WINDOWS),
    "pixtral": lambda: tiny_pixtral.pixtral(sliding_window=8),
    "mistral3": lambda: tiny_pixtral.mistral3(sliding_window=8),
    "mistral3_ministral3": tiny_pixtral.mistral3_ministral3,
    "gemma3_vision": lambda: tiny_gemma_vision.gemma3_vision(
        attention_bias=True, sliding_window_pattern=3, final_logit_softcapping=5.0
    ),
    "gemma4_vision": lambda: tiny_gemma4_vision.gemma4_vision(
        experts=True,
        attention_bias=True,
        num_hidden_layers=4,
        layer_types=tiny_gemma.TYPES[:4],
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=tiny_gemma4_vision.VOCAB,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
    ),
    "gemma3n": lambda: tiny_gemma3n.gemma3n(
        attention_bias=True, vocab_size_per_layer_input=tiny.VOCAB - 9
    ),
    "bert": tiny_encoders.bert,
    "nomic_bert": tiny_encoders.nomic_bert,
    "roberta": tiny_encoders.roberta,
    "jina_v2": tiny_encoders.jina_v2,
    "jina_v2_code": tiny_encoders.jina_v2_code,
    "jina_v3": tiny_encoders.jina_v3,
    "jina_v3_saved": tiny_encoders.jina_v3_saved,
    "modern_bert": lambda: tiny_encoders.modern_bert(
        attention_bias=True, layer_types=["full_attention", *2 * ["sliding_attention"]]
    ),
    "gemma_embedding": lambda: tiny_encoders.gemma_embedding(
        attention_bias=True, sliding_window_pattern=3
    ),
}
"""One of each family, whose config.json has every field."""
GGUF_MODELS: Mapping[str, Callable[[], TinyModel]] = {
    **MODELS,
    "llama": lambda: tiny.llama(attention_bias=True, mlp_bias=True, sliding_window=8),
    "qwen2": tiny.qwen2,
    "qwen3": lambda: tiny.qwen3(attention_bias=True),
    "qwen3_moe": lambda: tiny_kin.qwen3_moe(attention_bias=True),
    "qwen2_moe": tiny_moe.qwen2_moe,
    "qwen2_5_vl": lambda: text_of(tiny_qwen_vl.qwen2_5_vl()),
    "qwen3_vl": lambda: text_of(tiny_qwen_vl.qwen3_vl(attention_bias=True)),
    "qwen3_vl_moe": lambda: text_of(tiny_qwen_vl.qwen3_vl_moe(attention_bias=True)),
    "ernie4_5_moe": tiny_moe.ernie45_moe,
    "gpt_oss": tiny_moe.gpt_oss,
    "lfm2_moe": tiny_state.lfm2_moe,
    "qwen3_next": lambda: tiny_scan.qwen3_next(**_DELTA),
    "deepseek_v2": lambda: tiny_latent.deepseek_v2(q_lora_rank=32),
    "llama4": lambda: tiny_llama4.llama4_long(interleave_moe_layer_step=2),
    "kimi_linear": lambda: tiny_kimi.kimi_linear(q_lora_rank=32),
    "nemotron_h": lambda: tiny_hybrid.nemotron_h_moe(
        moe_latent_size=48, num_nextn_predict_layers=1, norm_topk_prob=False
    ),
    "olmo2": lambda: tiny_rope.olmo3(attention_bias=True),
    "minimax_m2": tiny_moe.minimax_m2,
    "glm4_moe": lambda: tiny_moe.glm4_moe(num_nextn_predict_layers=1),
}
