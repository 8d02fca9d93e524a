"""LFM2 with experts behind its first layers: by sigmoid, and a bias that chooses."""

from msgspec.structs import replace

from kvasir.models.families.lfm2 import LFM2
from kvasir.models.family import ModelField, TensorNames, always

_DENSE = ("attention_layers", "other_ffn_size", "ffn_adjusts", "ffn_factor", "ffn_multiple")

LFM2_MOE = replace(
    LFM2,
    name="lfm2_moe",
    architectures=("Lfm2MoeForCausalLM",),
    gguf="lfm2moe",
    fields={
        **{name: field for name, field in LFM2.fields.items() if name not in _DENSE},
        "ffn_size": ModelField("intermediate_size", "feed_forward_length", 7168),
        "n_experts": ModelField("num_experts", "expert_count", 32),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 4),
        "normalize": ModelField("norm_topk_prob", "", True, True),
        "expert_score": always("sigmoid"),
        "choice_bias": ModelField("use_expert_bias", "", True, True),
        "expert_scale": ModelField("routed_scaling_factor", "expert_weights_scale", 1.0, 1.0),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 1792),
        "first_sparse": ModelField("num_dense_layers", "leading_dense_block_count", 2, 0),
    },
    tensors={
        **LFM2.tensors,
        "router": TensorNames("feed_forward.gate", "ffn_gate_inp"),
        "choice_bias": TensorNames("feed_forward.expert_bias.", "exp_probs_b.bias."),
        "experts.gate": TensorNames("feed_forward.experts.{e}.w1", "ffn_gate_exps"),
        "experts.up": TensorNames("feed_forward.experts.{e}.w3", "ffn_up_exps"),
        "experts.down": TensorNames("feed_forward.experts.{e}.w2", "ffn_down_exps"),
    },
    harmless={**LFM2.harmless, "expert_gating_func": (2,)},
)
