"""Granite 4: Mamba-2 in most layers, attention without rope in the others, and behind each a gated
MLP, with or without experts beside it."""

from msgspec.structs import replace

from kvasir.models.families.granite_moe import GRANITE_MOE
from kvasir.models.families.mamba2 import scan_tensors
from kvasir.models.family import ModelField, TensorNames, always

_IN, _OUT = "shared_mlp.input_linear", "shared_mlp.output_linear"

GRANITE_HYBRID = replace(
    GRANITE_MOE,
    name="granite_hybrid",
    architectures=("GraniteMoeHybridForCausalLM",),
    gguf="granitehybrid",
    fields={
        **GRANITE_MOE.fields,
        "mixers": ModelField("layer_types"),
        "ffn_size": ModelField("shared_intermediate_size", "feed_forward_length", 1024),
        "expert_size": ModelField("intermediate_size", "feed_forward_length", 11008),
        "shared_size": ModelField(
            "shared_intermediate_size", "expert_shared_feed_forward_length", 1024, 0
        ),
        "n_experts": ModelField("num_local_experts", "expert_count", 8, 0),
        "rope_kind": ModelField("position_embedding_type", "rope.scaling.finetuned", "nope", False),
        "scan_rule": always("ssd"),
        "scan_heads": ModelField("mamba_n_heads", "ssm.time_step_rank", 128),
        "scan_head_dim": ModelField("mamba_d_head"),
        "scan_groups": ModelField("mamba_n_groups", "ssm.group_count", 1),
        "scan_expand": ModelField("mamba_expand", "", 2, 0.0),
        "scan_inner": ModelField("", "ssm.inner_size", 0),
        "state_dim": ModelField("mamba_d_state", "ssm.state_size", 256),
        "scan_taps": ModelField("mamba_d_conv", "ssm.conv_kernel", 4),
        "conv_bias": ModelField("mamba_conv_bias", "", True),
        "step_limits": ModelField("time_step_limit"),
    },
    tensors={
        **GRANITE_MOE.tensors,
        **scan_tensors("mamba"),
        "gate": TensorNames(_IN, "ffn_gate", "first_half"),
        "up": TensorNames(_IN, "ffn_up", "second_half"),
        "down": TensorNames(_OUT, "ffn_down"),
    },
    harmless={
        **GRANITE_MOE.harmless,
        "mamba_proj_bias": (False,),
        "normalization_function": ("rmsnorm",),
        **dict.fromkeys(("mamba_chunk_size", "init_method")),
        **dict.fromkeys(("time_step_min", "time_step_max", "time_step_floor")),
    },
)
