"""SmolLM3: Llama in which layers, every fourth unless told otherwise, have no rope. GGUF reorders
the rows of their q and k all the same."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, always

SMOLLM3 = replace(
    LLAMA,
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    gguf="smollm3",
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 4, 0),
        "theta": ModelField("rope_theta", "rope.freq_base", 2e6, 1e4),
        "rope_layers": ModelField("no_rope_layers"),
        "no_rope_every": ModelField("no_rope_layer_interval", "", 4, 4),
        "layer_types": ModelField("layer_types"),
        "tied": ModelField("tie_word_embeddings", "", True),
        "window": always(0),
    },
    harmless={**LLAMA.harmless, "use_sliding_window": (False,), "max_window_layers": None},
)
