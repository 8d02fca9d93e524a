"""Falcon-H1: attention and Mamba-2 beside each other in every layer, and multipliers of what each
part of it reads and gives, which GGUF files have in their matrices."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.families.mamba2 import scan_tensors
from kvasir.models.family import ModelField, TensorNames, always

_PLAIN = ("q", "k")
_SCAN = scan_tensors("mamba")

FALCON_H1 = replace(
    LLAMA,
    name="falcon_h1",
    architectures=("FalconH1ForCausalLM",),
    gguf="falcon-h1",
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 8, 0),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "qkv_bias": always(False),
        "o_bias": always(False),
        "mlp_bias": always(False),
        "window": always(0),
        "scan_rule": always("ssd"),
        "scan_beside": always(True),
        "scan_heads": ModelField("mamba_n_heads", "ssm.time_step_rank", 128),
        "scan_head_dim": ModelField("mamba_d_head"),
        "scan_groups": ModelField("mamba_n_groups", "ssm.group_count", 1),
        "scan_inner": ModelField("mamba_d_ssm", "ssm.inner_size", 1024),
        "scan_expand": ModelField("mamba_expand", "", 2, 0.0),
        "state_dim": ModelField("mamba_d_state", "ssm.state_size", 256),
        "scan_taps": ModelField("mamba_d_conv", "ssm.conv_kernel", 4),
        "conv_bias": ModelField("mamba_conv_bias", "", True),
        "scan_normed": ModelField("mamba_rms_norm", "", False),
        "scan_norm_first": ModelField("mamba_norm_before_gate", "", True, False),
        "step_limits": ModelField("time_step_limit"),
        "embed_scale": ModelField("embedding_multiplier", "", 1.0, 1.0),
        "logit_scale": ModelField("lm_head_multiplier", "", 1.0, 1.0),
        "key_scale": ModelField("key_multiplier", "", 1.0, 1.0),
        "attention_in": ModelField("attention_in_multiplier", "", 1.0, 1.0),
        "attention_out": ModelField("attention_out_multiplier", "", 1.0, 1.0),
        "scan_in_scale": ModelField("ssm_in_multiplier", "", 1.0, 1.0),
        "scan_out_scale": ModelField("ssm_out_multiplier", "", 1.0, 1.0),
        "scan_scales": ModelField("ssm_multipliers"),
        "mlp_scales": ModelField("mlp_multipliers"),
    },
    tensors={
        **LLAMA.tensors,
        **{name: LLAMA.tensors[name]._replace(gguf_step="") for name in _PLAIN},
        **_SCAN,
        "conv": _SCAN["conv"]._replace(hf_step="conv_taps scaled_parts"),
        "final_norm": TensorNames("model.final_layernorm", "output_norm"),
        "mlp_norm": TensorNames("pre_ff_layernorm", "ffn_norm."),
        "gate": TensorNames("feed_forward.gate_proj", "ffn_gate"),
        "up": TensorNames("feed_forward.up_proj", "ffn_up"),
        "down": TensorNames("feed_forward.down_proj", "ffn_down"),
    },
    harmless={
        **LLAMA.harmless,
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "projectors_bias": (False,),
        "mamba_proj_bias": (False,),
        **dict.fromkeys(("mamba_chunk_size", "mamba_use_mlp", "num_logits_to_keep")),
        **dict.fromkeys(("time_step_min", "time_step_max", "time_step_floor", "layers_block_type")),
    },
)
