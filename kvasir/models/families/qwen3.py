"""Qwen 3: no biases unless told otherwise, and a norm of each query and key head."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.families.qwen2 import QWEN2
from kvasir.models.family import ModelField, TensorNames
from kvasir.models.spec import BlockSpec

QWEN3 = replace(
    QWEN2,
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    gguf="qwen3",
    block=BlockSpec(qk_norm="heads"),
    fields={
        **QWEN2.fields,
        "head_dim": ModelField("head_dim", "attention.key_length", 128, 0),
        "qkv_bias": LLAMA.fields["qkv_bias"],
        "o_bias": LLAMA.fields["o_bias"],
    },
    tensors={
        **QWEN2.tensors,
        "q_norm": TensorNames("self_attn.q_norm", "attn_q_norm"),
        "k_norm": TensorNames("self_attn.k_norm", "attn_k_norm"),
    },
)
