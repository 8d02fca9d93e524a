"""Qwen 3 with experts in every layer; what its files say of dense layers is of none."""

from msgspec.structs import replace

from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.family import ModelField, TensorNames, always

QWEN3_MOE = replace(
    QWEN3,
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    gguf="qwen3moe",
    fields={
        **QWEN3.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 4, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 0, 0),
        "n_experts": ModelField("num_experts", "expert_count", 128),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 8),
        "normalize": ModelField("norm_topk_prob", "", False, True),
        "ffn_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 768),
        "first_window": always(0),
        "layer_types": always(None),
    },
    tensors={
        **{name: QWEN3.tensors[name] for name in QWEN3.tensors.keys() - {"gate", "up", "down"}},
        "router": TensorNames("mlp.gate", "ffn_gate_inp"),
        "experts.gate": TensorNames("mlp.experts.{e}.gate_proj", "ffn_gate_exps"),
        "experts.up": TensorNames("mlp.experts.{e}.up_proj", "ffn_up_exps"),
        "experts.down": TensorNames("mlp.experts.{e}.down_proj", "ffn_down_exps"),
    },
    harmless={
        **QWEN3.harmless,
        "decoder_sparse_step": (1,),
        "mlp_only_layers": ([],),
        "intermediate_size": None,
        "feed_forward_length": None,
        "max_window_layers": None,
    },
)
