"""Qwen 2 and 2.5: windows, where they are used at all, in the layers from a first one on."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, always

QWEN2 = replace(
    LLAMA,
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    gguf="qwen2",
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 32, 0),
        "qkv_bias": always(True),
        "o_bias": always(False),
        "mlp_bias": always(False),
        "window": ModelField("sliding_window", "", 4096, 0),
        "use_windows": ModelField("use_sliding_window", "", False, False),
        "first_window": ModelField("max_window_layers", "", 28, 0),
        "layer_types": ModelField("layer_types"),
    },
    tensors={name: each._replace(gguf_step="") for name, each in LLAMA.tensors.items()},
)
