"""Qwen3.5 (text): gated delta nets in most layers, gated attention in every fourth, a gated MLP.
Its GGUF files have heads of values in another order."""

from msgspec.structs import replace

from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.families.qwen3_next import DELTA_FIELDS, DELTA_TENSORS
from kvasir.models.family import ModelField, TensorNames
from kvasir.models.spec import BlockSpec

_NAMES = ("window", "use_windows", "first_window", "layer_types")

QWEN3_5 = replace(
    QWEN3,
    name="qwen3_5",
    architectures=("Qwen3_5ForCausalLM",),
    gguf="qwen35",
    block=BlockSpec(qk_norm="heads", output_gate=True),
    fields={
        **{name: field for name, field in QWEN3.fields.items() if name not in _NAMES},
        **DELTA_FIELDS,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 4, 0),
        "ffn_size": ModelField("intermediate_size", "feed_forward_length", 12288),
        "tiled_heads": ModelField("", "", False, True),
    },
    tensors={
        **QWEN3.tensors,
        **DELTA_TENSORS,
        "scan_in": TensorNames("linear_attn.in_proj_qkv", "attn_qkv"),
        "scan_gate": TensorNames("linear_attn.in_proj_z", "attn_gate"),
        "scan_share": TensorNames("linear_attn.in_proj_b", "ssm_beta"),
        "scan_step": TensorNames("linear_attn.in_proj_a", "ssm_alpha"),
    },
    harmless={
        **QWEN3.harmless,
        "attention_bias": (False,),
        "attn_output_gate": (True,),
        "mamba_ssm_dtype": ("float32",),
        "mlp_only_layers": ([],),
        **dict.fromkeys(("rope.dimension_sections", "mtp_use_dedicated_embeddings")),
    },
)
