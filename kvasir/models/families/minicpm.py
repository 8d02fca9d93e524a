"""MiniCPM 1, 2 and 4: Llama whose residuals are scaled by depth over the root of its layers, and
its logits by a base model's width over its own."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, always

MINICPM = replace(
    LLAMA,
    name="minicpm",
    architectures=("MiniCPMForCausalLM",),
    gguf="minicpm",
    fields={
        **LLAMA.fields,
        "mlp_bias": always(False),
        "embed_scale": ModelField("scale_emb", "embedding_scale", 1.0),
        "residual_depth": ModelField("scale_depth", "", 1.0, 0.0),
        "residual_scale": ModelField("", "residual_scale"),
        "logit_base": ModelField("dim_model_base", "", 1.0, 0.0),
        "logit_divisor": ModelField("", "logit_scale"),
        "tied": ModelField("tie_word_embeddings", "", True),
        "window": always(0),
    },
    harmless={**LLAMA.harmless, "num_experts": (0,), "mup_denominator": None},
)
