"""Kimi Linear: delta nets with a decay of each row of their states in three layers of four, latent
attention without rope in the others; experts as in DeepSeek V3."""

from msgspec.structs import replace

from kvasir.models.families.deepseek_v3 import DEEPSEEK_V3
from kvasir.models.families.minimax_m2 import MINIMAX_M2
from kvasir.models.family import ModelField, TensorNames, always

_NET, _MOE = "self_attn", "block_sparse_moe"
_NESTED = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
    "full_attn_layers": "full_attn_layers",
    "kda_layers": "kda_layers",
}
_HEADS = ModelField("linear_num_heads", "attention.head_count", 32)
_DIM = ModelField("linear_head_dim", "kda.head_dim", 128)
_TAPS = TensorNames(f"{_NET}.{{qkv}}_conv1d", "ssm_conv1d_{qkv}", *2 * ("joined conv_taps",))
_EXPERTS = ("experts.gate", "experts.up", "experts.down")

KIMI_LINEAR = replace(
    DEEPSEEK_V3,
    name="kimi_linear",
    architectures=("KimiLinearForCausalLM",),
    gguf="kimi-linear",
    nested={f"linear_attn_config.{key}": name for key, name in _NESTED.items()},
    fields={
        **DEEPSEEK_V3.fields,
        "max_positions": ModelField("model_max_length", "context_length", 1 << 20),
        "norm_eps": DEEPSEEK_V3.fields["norm_eps"]._replace(default=1e-5),
        "no_rope_every": always(1),
        "theta": ModelField("rope_theta", "rope.freq_base", 1e4, 1e4),
        "query_rank": ModelField("q_lora_rank", "attention.q_lora_rank", 0, 0),
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 0, 0),
        "n_experts": ModelField("num_experts", "expert_count", 256),
        "top_k": ModelField("num_experts_per_token", "expert_used_count", 8),
        "normalize": ModelField("moe_renormalize", "", True, True),
        "n_groups": ModelField("num_expert_group", "", 1, 1),
        "top_groups": ModelField("topk_group", "", 1, 1),
        "expert_scale": ModelField("routed_scaling_factor", "expert_weights_scale", 2.446, 1.0),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 1024),
        "n_shared": ModelField("num_shared_experts", "expert_shared_count", 1),
        "first_sparse": ModelField("first_k_dense_replace", "leading_dense_block_count", 1, 0),
        "draft_layers": ModelField("num_nextn_predict_layers", "", 0, 0),
        "mlp_types": ModelField("mlp_layer_types"),
        "mixers": ModelField("layer_types"),
        "attention_layers": ModelField("full_attn_layers"),
        "first_layer": always(1),
        "scan_rule": always("kda"),
        "scan_heads": _HEADS,
        "scan_groups": _HEADS,
        "scan_head_dim": _DIM,
        "state_dim": _DIM,
        "scan_rank": _DIM,
        "scan_taps": ModelField("linear_conv_kernel_dim", "ssm.conv_kernel", 4),
    },
    tensors={
        **DEEPSEEK_V3.tensors,
        "router": MINIMAX_M2.tensors["router"],
        **{name: MINIMAX_M2.tensors[name] for name in _EXPERTS},
        "choice_bias": TensorNames(f"{_MOE}.gate.e_score_correction_bias.", "exp_probs_b.bias."),
        "shared.gate": TensorNames(f"{_MOE}.shared_experts.gate_proj", "ffn_gate_shexp"),
        "shared.up": TensorNames(f"{_MOE}.shared_experts.up_proj", "ffn_up_shexp"),
        "shared.down": TensorNames(f"{_MOE}.shared_experts.down_proj", "ffn_down_shexp"),
        **{f"scan_{x}": TensorNames(f"{_NET}.{x}_proj", f"attn_{x}") for x in "qkv"},
        "conv": _TAPS,
        "scan_step_in": TensorNames(f"{_NET}.f_a_proj", "ssm_f_a"),
        "scan_step": TensorNames(f"{_NET}.f_b_proj", "ssm_f_b"),
        "step_bias": TensorNames(f"{_NET}.dt_bias.", "ssm_dt.bias."),
        "scan_rate": TensorNames(f"{_NET}.A_log.", "ssm_a.", "minus_exp"),
        "scan_share": TensorNames(f"{_NET}.b_proj", "ssm_beta"),
        "scan_gate_in": TensorNames(f"{_NET}.g_a_proj", "ssm_g_a"),
        "scan_gate": TensorNames(f"{_NET}.g_b_proj", "ssm_g_b"),
        "scan_norm": TensorNames(f"{_NET}.o_norm", "ssm_norm"),
        "scan_out": TensorNames(f"{_NET}.o_proj", "attn_output"),
    },
    harmless={
        "attention_bias": (False,),
        "moe_layer_freq": (1,),
        "moe_router_activation_func": ("sigmoid",),
        "use_grouped_topk": (True,),
        "mla_use_nope": (True,),
        "expert_gating_func": (2,),
        "expert_group_count": (1,),
        "expert_group_used_count": (1,),
        "kda_layers": None,
        "head_dim": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "rope.scaling.type": ("none",),
    },
)
