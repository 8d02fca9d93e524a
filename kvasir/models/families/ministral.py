"""Ministral 8B of 2024: Mistral that says which of its layers slide; its GGUF files say "llama"."""

from msgspec.structs import replace

from kvasir.models.families.llama import MISTRAL
from kvasir.models.family import ModelField

MINISTRAL = replace(
    MISTRAL,
    name="ministral",
    architectures=("MinistralForCausalLM",),
    fields={**MISTRAL.fields, "layer_types": ModelField("layer_types")},
)
