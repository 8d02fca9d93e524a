"""GLM-4.7 Flash: DeepSeek V3 in other sizes; its GGUF files are those of DeepSeek."""

from msgspec.structs import replace

from kvasir.models.families.deepseek_v3 import DEEPSEEK_V3
from kvasir.models.family import ModelField

_KEPT = ("rope_interleave", "attention_bias", "num_key_value_heads", "head_dim", "qk_head_dim")


def _with_default(name: str, value: float) -> ModelField:
    return DEEPSEEK_V3.fields[name]._replace(default=value)


GLM4_MOE_LITE = replace(
    DEEPSEEK_V3,
    name="glm4_moe_lite",
    architectures=("Glm4MoeLiteForCausalLM",),
    gguf="",
    fields={
        **DEEPSEEK_V3.fields,
        "norm_eps": _with_default("norm_eps", 1e-5),
        "query_rank": _with_default("query_rank", 768),
        "key_dim": _with_default("key_dim", 192),
        "value_dim": _with_default("value_dim", 256),
        "n_experts": _with_default("n_experts", 64),
        "top_k": _with_default("top_k", 4),
        "n_groups": _with_default("n_groups", 1),
        "top_groups": _with_default("top_groups", 1),
        "expert_scale": _with_default("expert_scale", 1.8),
        "expert_size": _with_default("expert_size", 1536),
        "n_shared": _with_default("n_shared", 1),
        "first_sparse": _with_default("first_sparse", 1),
        "mlp_types": ModelField("mlp_layer_types"),
    },
    harmless={name: DEEPSEEK_V3.harmless[name] for name in _KEPT},
)
