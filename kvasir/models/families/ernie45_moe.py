"""ERNIE 4.5 with experts from a first layer on, every so many-th; a bias helps to choose them."""

from msgspec.structs import replace

from kvasir.models.families.ernie45 import ERNIE45
from kvasir.models.families.qwen3_moe import QWEN3_MOE
from kvasir.models.family import ModelField, TensorNames, always

_EXPERTS = ("router", "experts.gate", "experts.up", "experts.down")
_SIZE = ModelField("moe_intermediate_size", "expert_feed_forward_length", 1536)

ERNIE45_MOE = replace(
    ERNIE45,
    name="ernie4_5_moe",
    architectures=("Ernie4_5_MoeForCausalLM",),
    gguf="ernie4_5-moe",
    fields={
        **ERNIE45.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 4, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 0, 0),
        "n_experts": ModelField("moe_num_experts", "expert_count", 64),
        "top_k": ModelField("moe_k", "expert_used_count", 6),
        "choice_bias": always(True),
        "expert_size": _SIZE,
        "n_shared": ModelField("moe_num_shared_experts", "expert_shared_count", 2, 0),
        "first_sparse": ModelField("moe_layer_start_index", "leading_dense_block_count", 1, 0),
        "sparse_every": ModelField("moe_layer_interval", "interleave_moe_layer_step", 1, 1),
        "last_sparse": ModelField("moe_layer_end_index", "", -1, -1),
    },
    tensors={
        **ERNIE45.tensors,
        **{name: QWEN3_MOE.tensors[name] for name in _EXPERTS},
        "choice_bias": TensorNames("mlp.moe_statics.e_score_correction_bias.", "exp_probs_b.bias."),
        "shared.gate": TensorNames("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
        "shared.up": TensorNames("mlp.shared_experts.up_proj", "ffn_up_shexp"),
        "shared.down": TensorNames("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    },
    harmless={
        **ERNIE45.harmless,
        "moe_norm_min": (1e-12,),
        "moe_gate": ("topk",),
        "moe_use_aux_free": (True,),
        "moe_capacity": None,
        "num_nextn_predict_layers": None,
        "expert_shared_feed_forward_length": None,
    },
)
