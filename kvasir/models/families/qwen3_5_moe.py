"""Qwen3.5 with experts in every layer, one of which sees every token."""

from msgspec.structs import replace

from kvasir.models.families.qwen3_5 import QWEN3_5
from kvasir.models.families.qwen3_next import QWEN3_NEXT
from kvasir.models.family import ModelField, always

_GONE = ("dense_layers", "sparse_every", "expert_size")
_SCAN = ("scan_in", "scan_gate", "scan_share", "scan_step")
_MLP = ("gate", "up", "down")

QWEN3_5_MOE = replace(
    QWEN3_NEXT,
    name="qwen3_5_moe",
    architectures=("Qwen3_5MoeForCausalLM",),
    gguf="qwen35moe",
    fields={
        **{name: x for name, x in QWEN3_NEXT.fields.items() if name not in _GONE},
        "ffn_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 512),
        "n_experts": ModelField("num_experts", "expert_count", 256),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 8),
        "normalize": always(True),
        "tiled_heads": QWEN3_5.fields["tiled_heads"],
    },
    tensors={
        **{name: x for name, x in QWEN3_NEXT.tensors.items() if name not in _MLP},
        **{name: QWEN3_5.tensors[name] for name in _SCAN},
    },
    harmless={
        **QWEN3_5.harmless,
        "norm_topk_prob": (True,),
        "decoder_sparse_step": (1,),
        **dict.fromkeys(("intermediate_size", "feed_forward_length")),
    },
)
