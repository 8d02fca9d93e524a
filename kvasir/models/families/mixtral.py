"""Mixtral: Llama with experts; its GGUF files say "llama" and a number of experts."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always

MIXTRAL = replace(
    LLAMA,
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 8, 0),
        "n_experts": ModelField("num_local_experts", "expert_count", 8),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 2),
        "qkv_bias": always(False),
        "o_bias": always(False),
        "mlp_bias": always(False),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "theta": ModelField("rope_theta", "rope.freq_base", 1e6, 1e4),
        "window": ModelField("sliding_window", "attention.sliding_window", 0, 0),
    },
    tensors={
        **{name: LLAMA.tensors[name] for name in LLAMA.tensors.keys() - {"gate", "up", "down"}},
        "router": TensorNames("block_sparse_moe.gate", "ffn_gate_inp"),
        "experts.gate": TensorNames("block_sparse_moe.experts.{e}.w1", "ffn_gate_exps"),
        "experts.up": TensorNames("block_sparse_moe.experts.{e}.w3", "ffn_up_exps"),
        "experts.down": TensorNames("block_sparse_moe.experts.{e}.w2", "ffn_down_exps"),
    },
)
