"""StableLM 3B, 2 1.6B and Zephyr: Llama with layer norms, of which a quarter of each head turns.
GGUF files say of every model that its blocks are parallel; those that are lack a norm."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, always
from kvasir.models.spec import BlockSpec

STABLELM = replace(
    LLAMA,
    name="stablelm",
    architectures=("StableLmForCausalLM",),
    gguf="stablelm",
    block=BlockSpec(norm="layer_bias"),
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 32, 0),
        "head_dim": always(0),
        "qkv_bias": ModelField("use_qkv_bias", "", False),
        "o_bias": always(False),
        "mlp_bias": always(False),
        "norm_eps": ModelField("layer_norm_eps", "attention.layer_norm_epsilon", 1e-5),
        "rotary_share": ModelField("partial_rotary_factor", "", 0.25),
        "window": always(0),
    },
    tensors={name: each._replace(gguf_step="") for name, each in LLAMA.tensors.items()},
    harmless={
        **LLAMA.harmless,
        "qk_layernorm": (False,),
        "use_parallel_residual": None,
    },
)
