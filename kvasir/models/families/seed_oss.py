"""Seed-OSS: Llama with biases of q, k and v, whose GGUF files call the norm before the MLP one
after attention, which it is too."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always

SEED_OSS = replace(
    LLAMA,
    name="seed_oss",
    architectures=("SeedOssForCausalLM",),
    gguf="seed_oss",
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 8, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 128, 0),
        "qkv_bias": ModelField("attention_bias", "", True),
        "o_bias": ModelField("attention_out_bias", "", False),
        "window": always(0),
    },
    tensors={
        **{name: each._replace(gguf_step="") for name, each in LLAMA.tensors.items()},
        "mlp_norm": TensorNames("post_attention_layernorm", "post_attention_norm"),
    },
)
