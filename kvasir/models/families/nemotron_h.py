"""Nemotron-H, Nemotron 3 (Nano, Super): layers of one part each, a Mamba-2 scan, attention without
rope, an MLP without gate, or experts without gate beside a shared one."""

from msgspec.structs import replace

from kvasir.models.families.deepseek_v3 import DEEPSEEK_V3
from kvasir.models.families.llama import LLAMA
from kvasir.models.families.mamba2 import MAMBA2, scan_tensors
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_MORE = ("n_heads", "theta", "normalize", "n_groups", "top_groups", "expert_score", "choice_bias")
_SHARED_SIZE = "moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"
_EXPERTS, _SHARED = "mixer.experts.{e}", "mixer.shared_experts"
_FIELDS = {**MAMBA2.fields, **{name: DEEPSEEK_V3.fields[name] for name in _MORE}}

NEMOTRON_H = replace(
    MAMBA2,
    name="nemotron_h",
    architectures=("NemotronHForCausalLM",),
    gguf="nemotron_h nemotron_h_moe",
    block=BlockSpec(gated=False),
    fields={
        **{name: x for name, x in _FIELDS.items() if name != "scan_expand"},
        "n_layers": ModelField("", "block_count"),
        "parts": ModelField("layers_block_type"),
        "pattern": ModelField("hybrid_override_pattern"),
        "draft_layers": ModelField("num_nextn_predict_layers", "nextn_predict_layers", 0, 0),
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 8),
        "head_dim": ModelField("head_dim", "attention.key_length", 128),
        "no_rope_every": always(1),
        "act": ModelField("mlp_hidden_act", "", "relu2", "relu2"),
        "ffn_size": ModelField("intermediate_size", "feed_forward_length", 21504),
        "norm_eps": ModelField("layer_norm_epsilon", "attention.layer_norm_epsilon", 1e-5),
        "rms_eps": ModelField("", "attention.layer_norm_rms_epsilon", 0.0, 0.0),
        "max_positions": ModelField("max_position_embeddings", "context_length", 4096),
        "scan_act": ModelField("mamba_hidden_act", "", "silu", "silu"),
        "scan_heads": ModelField("mamba_num_heads", "ssm.time_step_rank", 128),
        "scan_head_dim": ModelField("mamba_head_dim", "", 64),
        "state_dim": ModelField("ssm_state_size", "ssm.state_size", 128),
        "n_experts": ModelField("n_routed_experts", "expert_count", 8, 0),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 2),
        "n_groups": ModelField("n_group", "expert_group_count", 1, 1),
        "top_groups": ModelField("topk_group", "expert_group_used_count", 1, 1),
        "expert_scale": ModelField("routed_scaling_factor", "expert_weights_scale", 1.0, 1.0),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 7688),
        "expert_width": ModelField("moe_latent_size", "moe_latent_size", 0, 0),
        "shared_size": ModelField(*_SHARED_SIZE, 7688),
    },
    tensors={
        **MAMBA2.tensors,
        **scan_tensors("mixer"),
        "q": LLAMA.tensors["q"]._replace(hf="mixer.q_proj"),
        "k": LLAMA.tensors["k"]._replace(hf="mixer.k_proj"),
        "v": TensorNames("mixer.v_proj", "attn_v"),
        "o": TensorNames("mixer.o_proj", "attn_output"),
        "mlp_norm": MAMBA2.tensors["attn_norm"],
        "up": TensorNames("mixer.up_proj", "ffn_up"),
        "down": TensorNames("mixer.down_proj", "ffn_down"),
        "router": TensorNames("mixer.gate", "ffn_gate_inp"),
        "choice_bias": TensorNames("mixer.gate.e_score_correction_bias.", "exp_probs_b.bias."),
        "experts_in": TensorNames("mixer.fc1_latent_proj", "ffn_latent_down"),
        "experts_out": TensorNames("mixer.fc2_latent_proj", "ffn_latent_up"),
        "experts.up": TensorNames(f"{_EXPERTS}.up_proj", "ffn_up_exps"),
        "experts.down": TensorNames(f"{_EXPERTS}.down_proj", "ffn_down_exps"),
        "shared.up": TensorNames(f"{_SHARED}.up_proj", "ffn_up_shexp"),
        "shared.down": TensorNames(f"{_SHARED}.down_proj", "ffn_down_shexp"),
    },
    harmless={
        **dict.fromkeys(("use_bias", "attention_bias", "mlp_bias", "mamba_proj_bias"), (False,)),
        "sliding_window": (),
        "expert_gating_func": (2,),
        "mtp_layers_block_type": None,
        "rope.dimension_count": None,
        "mtp_hybrid_override_pattern": None,
        **dict.fromkeys(("rms_norm_eps", "norm_eps")),
        **dict.fromkeys(("num_hidden_layers", "expand", "attention_head_dim", "chunk_size")),
        **dict.fromkeys(("rescale_prenorm_residual", "residual_in_fp32", "partial_rotary_factor")),
        **dict.fromkeys(("time_step_min", "time_step_max", "time_step_floor", "time_step_rank")),
        **dict.fromkeys(("use_mamba_kernels", "mamba_ssm_cache_dtype", "num_logits_to_keep")),
        **dict.fromkeys(("n_shared_experts", "expert_shared_count", "moe_shared_expert_overlap")),
    },
)
