"""Granite 3 with experts, beside which one may see every token; gate and up of its folders lie one
behind the other."""

from msgspec.structs import replace

from kvasir.models.families.granite import GRANITE
from kvasir.models.family import ModelField, TensorNames, always

_IN, _SHARED_IN = "block_sparse_moe.input_linear", "shared_mlp.input_linear"

GRANITE_MOE = replace(
    GRANITE,
    name="granite_moe",
    architectures=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    gguf="granitemoe",
    fields={
        **GRANITE.fields,
        "mlp_bias": always(False),
        "n_experts": ModelField("num_local_experts", "expert_count", 8),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 2),
        "shared_size": ModelField(
            "shared_intermediate_size", "expert_shared_feed_forward_length", 0, 0
        ),
    },
    tensors={
        **{name: GRANITE.tensors[name] for name in GRANITE.tensors.keys() - {"gate", "up", "down"}},
        "router": TensorNames("block_sparse_moe.router.layer", "ffn_gate_inp"),
        "experts.gate": TensorNames(_IN, "ffn_gate_exps", "first_half"),
        "experts.up": TensorNames(_IN, "ffn_up_exps", "second_half"),
        "experts.down": TensorNames("block_sparse_moe.output_linear", "ffn_down_exps"),
        "shared.gate": TensorNames(_SHARED_IN, "ffn_gate_shexp", "first_half"),
        "shared.up": TensorNames(_SHARED_IN, "ffn_up_shexp", "second_half"),
        "shared.down": TensorNames("shared_mlp.output_linear", "ffn_down_shexp"),
    },
)
