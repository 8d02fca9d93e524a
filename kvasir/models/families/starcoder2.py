"""StarCoder2: layer norms and an MLP without gate, with biases everywhere. Its GGUF files do not
say how far layers see."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames
from kvasir.models.spec import BlockSpec

_BIAS = ModelField("use_bias", "", True)

STARCODER2 = replace(
    LLAMA,
    name="starcoder2",
    architectures=("Starcoder2ForCausalLM",),
    gguf="starcoder2",
    block=BlockSpec(norm="layer_bias", gated=False),
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 2, 0),
        "act": ModelField("hidden_act", "", "gelu_pytorch_tanh", "gelu_pytorch_tanh"),
        "qkv_bias": _BIAS,
        "o_bias": _BIAS,
        "mlp_bias": _BIAS,
        "norm_eps": ModelField("norm_epsilon", "attention.layer_norm_epsilon", 1e-5),
        "window": ModelField("sliding_window", "", 0, 0),
        "tied": ModelField("tie_word_embeddings", "", True),
    },
    tensors={
        **{name: LLAMA.tensors[name] for name in LLAMA.tensors.keys() - {"q", "k", "gate"}},
        "q": TensorNames("self_attn.q_proj", "attn_q"),
        "k": TensorNames("self_attn.k_proj", "attn_k"),
        "up": TensorNames("mlp.c_fc", "ffn_up"),
        "down": TensorNames("mlp.c_proj", "ffn_down"),
    },
    harmless={**LLAMA.harmless, "norm_type": ("layer_norm",), "mlp_type": ("default",)},
)
