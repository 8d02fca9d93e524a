"""ERNIE 4.5: Llama that rotates neighbours, in both kinds of file."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, always
from kvasir.models.spec import BlockSpec

_BIAS = ModelField("use_bias", "", False)

ERNIE45 = replace(
    LLAMA,
    name="ernie4_5",
    architectures=("Ernie4_5ForCausalLM",),
    gguf="ernie4_5",
    block=BlockSpec(interleaved_rope=True),
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 2, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 128, 0),
        "qkv_bias": _BIAS,
        "o_bias": _BIAS,
        "mlp_bias": _BIAS,
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "theta": ModelField("rope_theta", "rope.freq_base", 5e5, 1e4),
        "tied": ModelField("tie_word_embeddings", "", True),
        "window": always(0),
    },
    tensors={name: each._replace(gguf_step="") for name, each in LLAMA.tensors.items()},
)
