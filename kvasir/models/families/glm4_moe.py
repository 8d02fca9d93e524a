"""GLM-4.5 to 4.7: experts by sigmoid and a bias, in groups, beside shared ones and after dense
layers; rope in a part of each head, whose norm some models have."""

from msgspec.structs import replace

from kvasir.models.families.ernie45_moe import ERNIE45_MOE
from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_ALIKE = ("router", "experts.gate", "experts.up", "experts.down")
_SHARED = ("shared.gate", "shared.up", "shared.down")

GLM4_MOE = replace(
    QWEN3,
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    gguf="glm4moe",
    block=BlockSpec(qk_norm="heads"),
    fields={
        **{k: x for k, x in QWEN3.fields.items() if k not in ("use_windows", "layer_types")},
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 8, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 0, 0),
        "o_bias": always(False),
        "qk_norm": ModelField("use_qk_norm", "", False),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "rotary_share": ModelField("partial_rotary_factor", "", 0.5, 1.0),
        "window": always(0),
        "first_window": always(0),
        "n_experts": ModelField("n_routed_experts", "expert_count", 128),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 8),
        "normalize": ModelField("norm_topk_prob", "expert_weights_norm", True, False),
        "expert_score": always("sigmoid"),
        "choice_bias": always(True),
        "n_groups": ModelField("n_group", "expert_group_count", 1, 1),
        "top_groups": ModelField("topk_group", "expert_group_used_count", 1, 1),
        "expert_scale": ModelField("routed_scaling_factor", "expert_weights_scale", 1.0, 1.0),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 1408),
        "n_shared": ModelField("n_shared_experts", "expert_shared_count", 1),
        "first_sparse": ModelField("first_k_dense_replace", "leading_dense_block_count", 1, 0),
        "draft_layers": ModelField("num_nextn_predict_layers", "nextn_predict_layers", 1, 0),
    },
    tensors={
        **QWEN3.tensors,
        **{name: ERNIE45_MOE.tensors[name] for name in (*_ALIKE, *_SHARED)},
        "mlp_norm": TensorNames("post_attention_layernorm", "post_attention_norm"),
        "choice_bias": TensorNames("mlp.gate.e_score_correction_bias.", "exp_probs_b.bias."),
    },
    harmless={**QWEN3.harmless, "expert_gating_func": (2,)},
)
