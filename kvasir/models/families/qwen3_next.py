"""Qwen3-Next: gated delta nets in most layers, gated attention in every fourth, and experts, one of
which sees every token."""

from msgspec.structs import replace

from kvasir.models.families.qwen2_moe import QWEN2_MOE
from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

DELTA_FIELDS = {
    "qkv_bias": always(False),
    "o_bias": always(False),
    "mixers": ModelField("layer_types", "attention.recurrent_layers"),
    "attention_every": ModelField("full_attention_interval", "full_attention_interval", 4, 4),
    "draft_layers": ModelField("mtp_num_hidden_layers", "nextn_predict_layers", 0, 0),
    "scan_rule": always("delta"),
    "scan_heads": ModelField("linear_num_value_heads", "ssm.time_step_rank", 32),
    "scan_head_dim": ModelField("linear_value_head_dim", "", 128),
    "scan_groups": ModelField("linear_num_key_heads", "ssm.group_count", 16),
    "scan_inner": ModelField("", "ssm.inner_size", 0),
    "state_dim": ModelField("linear_key_head_dim", "ssm.state_size", 128),
    "scan_taps": ModelField("linear_conv_kernel_dim", "ssm.conv_kernel", 4),
    "head_dim": ModelField("head_dim", "attention.key_length", 256, 0),
    "rotary_share": ModelField("partial_rotary_factor", "", 0.25, 1.0),
}
"""Of this family and its relatives."""
_Q = TensorNames("self_attn.q_proj", "attn_q", "first_of_heads", "first_of_heads")
DELTA_TENSORS = {
    "final_norm": TensorNames("model.norm", "output_norm", "plus_one"),
    "attn_norm": TensorNames("input_layernorm", "attn_norm", "plus_one"),
    "mlp_norm": TensorNames("post_attention_layernorm", "post_attention_norm", "plus_one"),
    "q": _Q,
    "output_gate": _Q._replace(hf_step="second_of_heads", gguf_step="second_of_heads"),
    "q_norm": TensorNames("self_attn.q_norm", "attn_q_norm", "plus_one"),
    "k_norm": TensorNames("self_attn.k_norm", "attn_k_norm", "plus_one"),
    "conv": TensorNames("linear_attn.conv1d", "ssm_conv1d", "conv_taps", "taps"),
    "step_bias": TensorNames("linear_attn.dt_bias.", "ssm_dt.bias."),
    "scan_rate": TensorNames("linear_attn.A_log.", "ssm_a.", "minus_exp"),
    "scan_norm": TensorNames("linear_attn.norm", "ssm_norm"),
    "scan_out": TensorNames("linear_attn.out_proj", "ssm_out"),
}
_IN, _BOTH = "linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"

QWEN3_NEXT = replace(
    QWEN2_MOE,
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    gguf="qwen3next",
    block=BlockSpec(qk_norm="heads", output_gate=True, shared_gate=True),
    fields={
        **QWEN2_MOE.fields,
        **DELTA_FIELDS,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 2, 0),
        "ffn_size": ModelField("intermediate_size", "feed_forward_length", 5632),
        "n_experts": ModelField("num_experts", "expert_count", 512),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 10),
        "normalize": ModelField("norm_topk_prob", "", True, True),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 512),
        "shared_size": QWEN2_MOE.fields["shared_size"]._replace(default=512),
    },
    tensors={
        **QWEN2_MOE.tensors,
        **DELTA_TENSORS,
        "scan_in": TensorNames(_IN, "attn_qkv", "delta_in"),
        "scan_gate": TensorNames(_IN, "attn_gate", "delta_gate"),
        "scan_share": TensorNames(_BOTH, "ssm_ba", "first_of_heads", "first_of_heads"),
        "scan_step": TensorNames(_BOTH, "ssm_ba", "second_of_heads", "second_of_heads"),
    },
    harmless={**QWEN3.harmless, "attention_bias": (False,)},
)
