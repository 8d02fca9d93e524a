"""Ministral 3: Mistral whose queries grow with the logarithm of their position."""

from msgspec.structs import replace

from kvasir.models.families.llama import MISTRAL
from kvasir.models.family import ModelField

MINISTRAL3 = replace(
    MISTRAL,
    name="ministral3",
    architectures=("Ministral3ForCausalLM",),
    gguf="mistral3",
    fields={
        **MISTRAL.fields,
        "head_dim": ModelField("head_dim", "attention.key_length", 128, 0),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "theta": ModelField("rope_theta", "rope.freq_base", None, 1e4),
        "window": ModelField("sliding_window", "attention.sliding_window", 0, 0),
        "query_beta": ModelField("llama_4_scaling_beta", "attention.temperature_scale", 0.0, 0.0),
    },
)
