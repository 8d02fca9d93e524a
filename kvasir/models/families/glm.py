"""GLM-4 of 2024: neighbours in half of each head turn, biases of q, k and v, gate and up in one
tensor; GGUF files, which say "chatglm", have q, k and v in one, too."""

from msgspec.structs import replace

from kvasir.models.families.phi3 import PHI3
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

GLM = replace(
    PHI3,
    name="glm",
    architectures=("GlmForCausalLM",),
    gguf="chatglm",
    block=BlockSpec(interleaved_rope=True),
    fields={
        **PHI3.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 2, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 128, 0),
        "qkv_bias": ModelField("attention_bias", "", True),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1.5625e-7),
        "rotary_share": ModelField("partial_rotary_factor", "", 0.5, 1.0),
        "window": always(0),
    },
    tensors={
        **PHI3.tensors,
        "q": TensorNames("self_attn.q_proj", "attn_qkv", gguf_step="q_of_qkv"),
        "k": TensorNames("self_attn.k_proj", "attn_qkv", gguf_step="k_of_qkv"),
        "v": TensorNames("self_attn.v_proj", "attn_qkv", gguf_step="v_of_qkv"),
    },
)
