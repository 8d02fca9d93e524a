"""Command R7B, Command A: Command R of which three layers in four slide; the others have no
rope."""

from msgspec.structs import replace

from kvasir.models.families.cohere import COHERE
from kvasir.models.family import ModelField

COHERE2 = replace(
    COHERE,
    name="cohere2",
    architectures=("Cohere2ForCausalLM",),
    gguf="cohere2",
    fields={
        **COHERE.fields,
        "theta": ModelField("rope_theta", "rope.freq_base", 1e4, 1e4),
        "logit_scale": ModelField("logit_scale", "logit_scale", 0.0625),
        "window": ModelField("sliding_window", "attention.sliding_window", 4096),
        "full_every": ModelField("sliding_window_pattern", "", 4, 4),
        "layer_types": ModelField("layer_types"),
    },
    harmless={
        **COHERE.harmless,
        "order_of_interleaved_layers": ("local_attn_first",),
        "position_embedding_type": ("rope_gptj",),
        "rotary_pct": (1.0,),
        "use_gated_activation": (True,),
        "use_parallel_block": (True,),
        "use_embedding_sharing": (True,),
        "use_parallel_embedding": None,
        "layer_switch": None,
    },
    full_without_rope=True,
)
