"""Qwen3-VL with experts in every layer, whose matrices lie input by output, gate and up side by
side; in folders that ``transformers`` saved output by input, gate and up one below the other."""

from msgspec.structs import replace

from kvasir.models.families.qwen3_moe import QWEN3_MOE
from kvasir.models.families.qwen3_vl import QWEN3_VL
from kvasir.models.family import ModelField, TensorNames, always

_DENSE = ("gate", "up", "down")
_IN = "mlp.experts.gate_up_proj."

QWEN3_VL_MOE = replace(
    QWEN3_VL,
    name="qwen3_vl_moe",
    architectures=("Qwen3VLMoeForConditionalGeneration",),
    gguf="qwen3vlmoe",
    fields={
        **QWEN3_VL.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 16, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 0, 0),
        "n_experts": ModelField("num_experts", "expert_count", 60),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 4),
        "normalize": always(True),
        "ffn_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 1408),
    },
    tensors={
        **{name: each for name, each in QWEN3_VL.tensors.items() if name not in _DENSE},
        "router": QWEN3_MOE.tensors["router"],
        "experts.gate": TensorNames(_IN, "ffn_gate_exps", "inputs_last first_half"),
        "experts.up": TensorNames(_IN, "ffn_up_exps", "inputs_last second_half"),
        "experts.down": TensorNames("mlp.experts.down_proj.", "ffn_down_exps", "inputs_last"),
    },
    harmless={**QWEN3_VL.harmless, **QWEN3_MOE.harmless, "norm_topk_prob": (True,)},
)
QWEN3_VL_MOE_SAVED = replace(
    QWEN3_VL_MOE,
    name="qwen3_vl_moe_saved",
    gguf="",
    fields={**QWEN3_VL_MOE.fields, "n_experts": ModelField("num_local_experts", "", 60)},
    tensors={
        **QWEN3_VL_MOE.tensors,
        "experts.gate": TensorNames(_IN, "ffn_gate_exps", "first_half"),
        "experts.up": TensorNames(_IN, "ffn_up_exps", "second_half"),
        "experts.down": TensorNames("mlp.experts.down_proj.", "ffn_down_exps"),
    },
)
