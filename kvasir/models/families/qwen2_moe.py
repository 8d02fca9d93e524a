"""Qwen 2 with experts, beside which one with a gate of its own sees every token."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.families.qwen2 import QWEN2
from kvasir.models.families.qwen3_moe import QWEN3_MOE
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_SHARED_SIZE = "shared_expert_intermediate_size", "expert_shared_feed_forward_length"

QWEN2_MOE = replace(
    LLAMA,
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    gguf="qwen2moe",
    block=BlockSpec(shared_gate=True),
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 16, 0),
        "qkv_bias": ModelField("qkv_bias", "", True),
        "o_bias": always(False),
        "mlp_bias": always(False),
        "window": always(0),
        "n_experts": ModelField("num_experts", "expert_count", 60),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 4),
        "normalize": ModelField("norm_topk_prob", "", False, False),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 1408),
        "shared_size": ModelField(*_SHARED_SIZE, 5632),
        "sparse_every": ModelField("decoder_sparse_step", "", 1, 1),
        "dense_layers": ModelField("mlp_only_layers"),
    },
    tensors={
        **QWEN2.tensors,
        **{name: QWEN3_MOE.tensors[name] for name in QWEN3_MOE.tensors if "experts" in name},
        "router": QWEN3_MOE.tensors["router"],
        "shared_gate": TensorNames("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        "shared.gate": TensorNames("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        "shared.up": TensorNames("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        "shared.down": TensorNames("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    },
    harmless={
        **LLAMA.harmless,
        "use_sliding_window": (False,),
        "sliding_window": None,
        "max_window_layers": None,
    },
)
