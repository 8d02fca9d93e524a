"""Hunyuan with experts (A13B), beside which one sees every token."""

from msgspec.structs import replace

from kvasir.models.families.hunyuan_dense import HUNYUAN_DENSE
from kvasir.models.family import ModelField, TensorNames

_MLP = ("gate", "up", "down")
_PARTS = {part: f"{part}_proj" for part in _MLP}

HUNYUAN_MOE = replace(
    HUNYUAN_DENSE,
    name="hunyuan_v1_moe",
    architectures=("HunYuanMoEV1ForCausalLM",),
    gguf="hunyuan-moe",
    fields={
        **HUNYUAN_DENSE.fields,
        "n_experts": ModelField("num_experts", "expert_count", 1),
        "top_k": ModelField("moe_topk", "expert_used_count", 1),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 0),
        "shared_size": ModelField("intermediate_size", "expert_shared_feed_forward_length"),
    },
    tensors={
        **{name: x for name, x in HUNYUAN_DENSE.tensors.items() if name not in _MLP},
        "router": TensorNames("mlp.gate.wg", "ffn_gate_inp"),
        **{
            f"experts.{part}": TensorNames(f"mlp.experts.{{e}}.{name}", f"ffn_{part}_exps")
            for part, name in _PARTS.items()
        },
        **{
            f"shared.{part}": TensorNames(f"mlp.shared_mlp.{name}", f"ffn_{part}_shexp")
            for part, name in _PARTS.items()
        },
    },
    harmless={
        **{k: x for k, x in HUNYUAN_DENSE.harmless.items() if k != "num_experts"},
        "use_mixed_mlp_moe": (True,),
        "norm_topk_prob": (True,),
        "moe_layer_num_skipped": (0,),
        **dict.fromkeys(("num_shared_expert", "expert_shared_count", "num_experts_per_tok")),
    },
)
