"""What is compared with ``transformers``: models, prompts, and the logits kept as goldens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
from tests.tiny import TinyModel

KIN: tuple[Callable[[], TinyModel], ...] = (
    *(tiny_kin.seed_oss, tiny_kin.granite, tiny_kin.smollm3, tiny_kin.exaone4, tiny_kin.qwen3_moe),
    *(tiny_kin.ernie45, tiny_kin.ministral, tiny_kin.gemma, tiny_kin.gemma2),
    *(tiny_moe.qwen2_moe, tiny_moe.granite_moe, tiny_moe.granite_moe_shared, tiny_moe.ernie45_moe),
    *(tiny_moe.gpt_oss, tiny_moe.olmoe, tiny_moe.minimax_m2, tiny_moe.glm4_moe),
    *(tiny_moe.hunyuan_moe, tiny_moe.exaone_moe),
    *(tiny_latent.deepseek_v2, tiny_latent.deepseek_v3, tiny_latent.glm4_moe_lite),
    *(tiny_rope.olmo2, tiny_rope.ministral3, tiny_rope.hunyuan_dense, tiny_rope.minicpm),
    *(tiny_rope.phi3, tiny_rope.glm, tiny_rope.glm4, tiny_rope.olmo3),
    *(tiny_layer_norms.starcoder2, tiny_layer_norms.cohere, tiny_layer_norms.cohere2),
    *(tiny_layer_norms.phi, tiny_layer_norms.stablelm, tiny_layer_norms.gpt_neox),
    *(tiny_layer_norms.falcon, tiny_layer_norms.falcon_two_norms),
    *(tiny_layer_norms.gptj, tiny_layer_norms.gpt2),
    *(tiny_state.lfm2, tiny_state.lfm2_moe),
    *(tiny_scan.mamba2, tiny_scan.granite_hybrid, tiny_scan.qwen3_next, tiny_scan.qwen3_5),
    *(tiny_hybrid.falcon_h1, tiny_hybrid.nemotron_h, tiny_hybrid.nemotron_h_moe),
    *(tiny_scan.qwen3_5_moe, tiny_gemma.gemma4, tiny_gemma.gemma4_moe),
    tiny_gemma3n.gemma3n,
    *(tiny_kimi.kimi_linear, tiny_llama4.llama4, tiny_llama4.llama4_long),
)
GGUF_MODELS = (
    *("tiny_llama", "tiny_mixtral", "tiny_qwen2", "tiny_qwen3", "tiny_seed_oss", "tiny_granite"),
    *("tiny_smollm3", "tiny_exaone4", "tiny_ernie45", "tiny_gemma", "tiny_qwen3_moe"),
    *("tiny_qwen2_moe", "tiny_granite_moe", "tiny_granite_moe_shared", "tiny_ernie45_moe"),
    *("tiny_gpt_oss", "tiny_olmoe", "tiny_minimax_m2", "tiny_glm4_moe", "tiny_hunyuan_moe"),
    "tiny_exaone_moe",
    *("tiny_deepseek_v2", "tiny_deepseek_v3", "tiny_glm4_moe_lite"),
    *("tiny_olmo2", "tiny_ministral3", "tiny_hunyuan_dense", "tiny_minicpm"),
    *("tiny_phi3", "tiny_glm", "tiny_glm4", "tiny_olmo3"),
    *("tiny_starcoder2", "tiny_cohere", "tiny_cohere2", "tiny_phi", "tiny_stablelm"),
    *("tiny_gpt_neox", "tiny_falcon", "tiny_falcon_two_norms", "tiny_gpt2"),
    *("tiny_lfm2", "tiny_lfm2_moe"),
    *("tiny_mamba2", "tiny_granite_hybrid", "tiny_qwen3_next", "tiny_qwen3_5", "tiny_qwen3_5_moe"),
    "tiny_gemma3n",
    *("tiny_gemma4", "tiny_gemma4_moe", "tiny_kimi_linear", "tiny_llama4_long"),
    *("tiny_falcon_h1", "tiny_nemotron_h", "tiny_nemotron_h_moe"),
)
"""Golden models whose GGUF files say all that their configs do."""

ENCODERS: Mapping[str, Callable[[], TinyModel]] = {
    "tiny_bert": tiny_encoders.bert,
    "tiny_nomic_bert": tiny_encoders.nomic_bert,
    "tiny_roberta": tiny_encoders.roberta,
    "tiny_modern_bert": tiny_encoders.modern_bert,
    "tiny_jina_v2": tiny_encoders.jina_v2,
    "tiny_jina_v2_code": tiny_encoders.jina_v2_code,
    "tiny_jina_v3": tiny_encoders.jina_v3,
    "tiny_jina_v3_saved": tiny_encoders.jina_v3_saved,
    "tiny_gemma_embedding": tiny_encoders.gemma_embedding,
}
"""Models that make vectors alone."""

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 3.0,
    "beta_slow": 0.4,
}

GOLDEN_MODELS: Mapping[str, Callable[[], TinyModel]] = {
    "tiny_llama": tiny.llama,
    "tiny_mistral": tiny.mistral,
    "tiny_mixtral": tiny.mixtral,
    "tiny_gemma3": tiny.gemma3,
    "tiny_qwen2": tiny.qwen2,
    "tiny_qwen3": tiny.qwen3,
    **{f"tiny_{kin.__name__}": kin for kin in KIN},
    "tiny_smolvlm": tiny_vision.smolvlm,
    "tiny_qwen2_vl": tiny_qwen_vl.qwen2_vl,
    "tiny_qwen2_5_vl": tiny_qwen_vl.qwen2_5_vl,
    "tiny_qwen3_vl": tiny_qwen_vl.qwen3_vl,
    "tiny_qwen3_vl_moe": tiny_qwen_vl.qwen3_vl_moe,
    "tiny_qwen3_vl_moe_saved": tiny_qwen_vl.qwen3_vl_moe_saved,
    "tiny_qwen3_5_vl": tiny_qwen_vl.qwen3_5_vl,
    "tiny_qwen3_5_moe_vl": tiny_qwen_vl.qwen3_5_moe_vl,
    "tiny_gemma3_vision": tiny_gemma_vision.gemma3_vision,
    "tiny_gemma4_vision": tiny_gemma4_vision.gemma4_vision,
    "tiny_internvl": tiny_internvl.internvl,
    "tiny_internvl_qwen3": tiny_internvl.internvl_qwen3,
    "tiny_llava_onevision": tiny_llava.llava_onevision,
    "tiny_pixtral": tiny_pixtral.pixtral,
    "tiny_mistral3": tiny_pixtral.mistral3,
    "tiny_mistral3_ministral3": tiny_pixtral.mistral3_ministral3,
}

VARIANTS: Mapping[str, Callable[[], TinyModel]] = {
    "llama3_rope": lambda: tiny.llama(rope_scaling=LLAMA3_ROPE),
    "yarn_rope": lambda: tiny.llama(rope_scaling=YARN),
    "yarn_rope_cut": lambda: tiny.llama(
        rope_scaling={**YARN, "truncate": False, "attention_factor": 1.3}
    ),
    "dynamic_rope": lambda: tiny.llama(
        rope_scaling={"rope_type": "dynamic", "factor": 3.0}, max_position_embeddings=48
    ),
    "phi3_short": lambda: tiny_rope.phi3(original_max_position_embeddings=256),
    "olmo3_older_rope": lambda: tiny_rope.olmo3(
        rope_parameters=None, rope_scaling=YARN, rope_theta=5e5
    ),
    "linear_rope": lambda: tiny.llama(rope_scaling={"type": "linear", "factor": 2.0}),
    "biases": lambda: tiny.llama(attention_bias=True, mlp_bias=True),
    "tied": lambda: tiny.llama(tie_word_embeddings=True),
    "no_gqa": lambda: tiny.llama(num_key_value_heads=4),
    "wide_heads": lambda: tiny.llama(head_dim=32),
    "qwen2_windows": lambda: tiny.qwen2(
        use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "starcoder2_windows": lambda: tiny_layer_norms.starcoder2(sliding_window=8),
    "starcoder2_plain": lambda: tiny_layer_norms.starcoder2(
        use_bias=False, tie_word_embeddings=True
    ),
    "cohere_biases": lambda: tiny_layer_norms.cohere(attention_bias=True),
    "gpt_neox_serial": lambda: tiny_layer_norms.gpt_neox(use_parallel_residual=False),
    "gpt_neox_plain": lambda: tiny_layer_norms.gpt_neox(attention_bias=False, rotary_pct=1.0),
    "falcon_heads": tiny_layer_norms.falcon_heads,
    "falcon_one_norm": lambda: tiny_layer_norms.falcon_two_norms(num_ln_in_parallel_attn=1),
    "gpt2_bare": tiny_layer_norms.gpt2_bare,
    "lfm2_by_number": tiny_state.lfm2_by_number,
    "lfm2_moe_shares": lambda: tiny_state.lfm2_moe(norm_topk_prob=False, use_expert_bias=False),
    "mamba2_one_group": lambda: tiny_scan.mamba2(n_groups=1),
    "mamba2_steps": lambda: tiny_scan.mamba2(time_step_limit=[0.1, 0.6], use_conv_bias=False),
    "granite_hybrid_dense": tiny_scan.granite_hybrid_dense,
    "granite_hybrid_rope": lambda: tiny_scan.granite_hybrid(position_embedding_type="rope"),
    "falcon_h1_bare": lambda: tiny_hybrid.falcon_h1(
        mamba_rms_norm=False,
        mamba_n_groups=1,
        mamba_conv_bias=False,
        mlp_multipliers=None,
        ssm_multipliers=None,
    ),
    "falcon_h1_norm_first": lambda: tiny_hybrid.falcon_h1(mamba_norm_before_gate=True),
    "nemotron_h_all": lambda: tiny_hybrid.nemotron_h_moe(
        layers_block_type=["mamba", "mlp", "attention", "moe"],
        moe_latent_size=48,
        n_group=3,
        topk_group=2,
        norm_topk_prob=False,
        use_conv_bias=False,
    ),
    "llama4_pairs": lambda: tiny_llama4.llama4(
        num_experts_per_tok=2,
        use_qk_norm=False,
        attn_temperature_tuning=False,
        attention_bias=True,
        rope_scaling=LLAMA3_ROPE,
    ),
    "llama4_defaults": lambda: tiny_llama4.llama4(
        no_rope_layers=[], no_rope_layer_interval=2, layer_types=None, moe_layers=None
    ),
    "kimi_linear_groups": lambda: tiny_kimi.kimi_linear(
        num_expert_group=4, topk_group=2, moe_renormalize=False, q_lora_rank=32
    ),
    "qwen3_next_shares": lambda: tiny_scan.qwen3_next(norm_topk_prob=False),
    "qwen3_moe_shares": lambda: tiny_kin.qwen3_moe(norm_topk_prob=False),
    "qwen2_moe_dense": lambda: tiny_moe.qwen2_moe(mlp_only_layers=[0], norm_topk_prob=True),
    "olmoe_whole": lambda: tiny_moe.olmoe(norm_topk_prob=True),
    "hunyuan_moe_plain": lambda: tiny_moe.hunyuan_moe(
        rope_scaling=None, moe_topk=2, moe_intermediate_size=None, attention_bias=False
    ),
    "exaone_moe_full": lambda: tiny_moe.exaone_moe(
        layer_types=["full_attention"] * 4,
        mlp_layer_types=None,
        norm_topk_prob=False,
        n_group=1,
        topk_group=1,
    ),
    "glm4_moe_shares": lambda: tiny_moe.glm4_moe(norm_topk_prob=False, attention_bias=False),
    "deepseek_v2_lite": lambda: tiny_latent.deepseek_v2(topk_method="greedy", n_group=1),
    "deepseek_v2_queries": lambda: tiny_latent.deepseek_v2(q_lora_rank=32),
    "deepseek_v3_scales": lambda: tiny_latent.deepseek_v3(
        rope_scaling={**tiny_latent.YARN, "mscale": 1.3}, norm_topk_prob=False
    ),
    "deepseek_v3_plain": lambda: tiny_latent.deepseek_v3(rope_scaling=None, q_lora_rank=None),
    "granite_moe_bias": lambda: tiny_moe.granite_moe(attention_bias=True),
    "qwen3_bias": lambda: tiny.qwen3(attention_bias=True),
    "gemma4_plain": lambda: tiny_gemma.gemma4_moe(
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
        attention_bias=True,
        num_global_key_value_heads=None,
    ),
    "gemma4_saved": tiny_gemma.gemma4_saved,
    "gemma3n_few": tiny_gemma3n.gemma3n_few,
    "gemma3_plain": lambda: tiny.gemma3(attn_logit_softcapping=None, final_logit_softcapping=None),
    "gemma3_nested_rope": lambda: tiny.gemma3(
        rope_scaling=None,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2000.0},
        },
    ),
}

PROMPTS: tuple[tuple[int, ...], ...] = (
    (7, 300, 41, 41, 98),
    tuple((17 * i * i + 5 * i + 3) % tiny.VOCAB for i in range(40)),
)


def kept(n_tokens: int) -> tuple[int, ...]:
    """Positions whose logits are golden."""
    return (0, n_tokens // 2, n_tokens - 1)
