"""DeepSeek V2, V2.5 and V2-Lite: as V3, with experts by softmax and no bias."""

from msgspec.structs import replace

from kvasir.models.families.deepseek_v3 import DEEPSEEK_V3
from kvasir.models.family import ModelField, always

_OF_V3 = ("choice_bias", "draft_layers")

DEEPSEEK_V2 = replace(
    DEEPSEEK_V3,
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    fields={
        **{name: x for name, x in DEEPSEEK_V3.fields.items() if name not in _OF_V3},
        "normalize": always(False),
        "expert_score": always("softmax"),
        "group_rule": ModelField("topk_method", "", "greedy", "group_limited_greedy"),
        "n_experts": ModelField("n_routed_experts", "expert_count", 64),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count"),
        "n_groups": ModelField("n_group", "expert_group_count", 1, 1),
        "top_groups": ModelField("topk_group", "expert_group_used_count", 1, 1),
        "expert_scale": ModelField("routed_scaling_factor", "expert_weights_scale", 1.0, 1.0),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 1407),
        "n_shared": ModelField("n_shared_experts", "expert_shared_count", 2),
        "first_sparse": ModelField("first_k_dense_replace", "leading_dense_block_count", 0, 0),
    },
    tensors={name: x for name, x in DEEPSEEK_V3.tensors.items() if name != "choice_bias"},
    harmless={
        **{k: x for k, x in DEEPSEEK_V3.harmless.items() if k != "rope_interleave"},
        "mlp_bias": (False,),
        "norm_topk_prob": (False,),
        "expert_weights_norm": (False,),
        "scoring_func": ("softmax",),
        "expert_gating_func": (1,),
    },
)
