"""K-EXAONE: EXAONE 4 with norms before its parts, and experts by sigmoid and a bias beside shared
ones and after dense layers."""

from msgspec.structs import replace

from kvasir.models.families.exaone4 import EXAONE4
from kvasir.models.families.glm4_moe import GLM4_MOE
from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.family import ModelField, TensorNames
from kvasir.models.spec import BlockSpec

_ALIKE = ("normalize", "expert_score", "choice_bias", "n_groups", "top_groups")
_EXPERTS = ("router", "experts.gate", "experts.up", "experts.down")
_SHARED = ("shared.gate", "shared.up", "shared.down")

EXAONE_MOE = replace(
    EXAONE4,
    name="exaone_moe",
    architectures=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    gguf="exaone-moe",
    block=BlockSpec(qk_norm="heads"),
    fields={
        **EXAONE4.fields,
        **{name: GLM4_MOE.fields[name] for name in _ALIKE},
        "n_experts": ModelField("num_experts", "expert_count", 64),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 8),
        "expert_scale": ModelField("routed_scaling_factor", "expert_weights_scale", 2.5, 1.0),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 1024),
        "n_shared": ModelField("num_shared_experts", "expert_shared_count", 1),
        "first_sparse": ModelField("first_k_dense_replace", "leading_dense_block_count", 1, 0),
        "mlp_types": ModelField("mlp_layer_types"),
        "draft_layers": ModelField("num_nextn_predict_layers", "nextn_predict_layers", 0, 0),
    },
    tensors={
        **QWEN3.tensors,
        **{name: GLM4_MOE.tensors[name] for name in (*_EXPERTS, *_SHARED)},
        "choice_bias": TensorNames("mlp.e_score_correction_bias.", "exp_probs_b.bias."),
    },
    harmless={
        **EXAONE4.harmless,
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "is_moe_layer": None,
        "first_last_k_dense_replace": None,
        "expert_gating_func": (2,),
        "expert_shared_feed_forward_length": None,
    },
)
