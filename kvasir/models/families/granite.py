"""Granite 3: Llama with a multiplier of embeddings, attention scores and what layers add, and a
divisor of logits."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, always

GRANITE = replace(
    LLAMA,
    name="granite",
    architectures=("GraniteForCausalLM",),
    gguf="granite",
    fields={
        **LLAMA.fields,
        "attention_scale": ModelField("attention_multiplier", "attention.scale", 1.0, 0.0),
        "embed_scale": ModelField("embedding_multiplier", "embedding_scale", 1.0, 1.0),
        "residual_scale": ModelField("residual_multiplier", "residual_scale", 1.0, 1.0),
        "logit_divisor": ModelField("logits_scaling", "logit_scale", 1.0, 1.0),
        "window": always(0),
    },
)
