"""Mamba-2: a scan in each layer and nothing beside it."""

from kvasir.models.family import Family, ModelField, TensorNames, always

SCAN_TENSORS = {
    "scan_gate": TensorNames("in_proj", "ssm_in", "scan_gate_rows", "scan_gate_rows"),
    "scan_in": TensorNames("in_proj", "ssm_in", "scan_in_rows", "scan_in_rows"),
    "scan_step": TensorNames("in_proj", "ssm_in", "scan_step_rows", "scan_step_rows"),
    "conv": TensorNames("conv1d", "ssm_conv1d", "conv_taps", "taps"),
    "conv_bias": TensorNames("conv1d.bias.", "ssm_conv1d.bias."),
    "step_bias": TensorNames("dt_bias.", "ssm_dt.bias."),
    "scan_rate": TensorNames("A_log.", "ssm_a.", "minus_exp", "column"),
    "scan_skip": TensorNames("D.", "ssm_d.", "", "column"),
    "scan_norm": TensorNames("norm", "ssm_norm", "", "flat"),
    "scan_out": TensorNames("out_proj", "ssm_out"),
}
"""Of a mixer, whose name in folders stands before."""


def scan_tensors(mixer: str) -> dict[str, TensorNames]:
    """With the name of the mixer in folders."""
    return {name: x._replace(hf=f"{mixer}.{x.hf}") for name, x in SCAN_TENSORS.items()}


MAMBA2 = Family(
    "mamba2",
    ("Mamba2ForCausalLM",),
    "mamba2",
    fields={
        "vocab_size": ModelField("vocab_size", "vocab_size"),
        "hidden_size": ModelField("hidden_size", "embedding_length"),
        "n_layers": ModelField("num_hidden_layers", "block_count"),
        "scan_rule": always("ssd"),
        "scan_heads": ModelField("num_heads", "ssm.time_step_rank"),
        "scan_head_dim": ModelField("head_dim"),
        "scan_groups": ModelField("n_groups", "ssm.group_count", 8),
        "scan_expand": ModelField("expand", "", 2, 0.0),
        "scan_inner": ModelField("", "ssm.inner_size", 0),
        "state_dim": ModelField("state_size", "ssm.state_size", 128),
        "scan_taps": ModelField("conv_kernel", "ssm.conv_kernel", 4),
        "conv_bias": ModelField("use_conv_bias", "", True),
        "step_limits": ModelField("time_step_limit"),
        "max_positions": ModelField("", "context_length", 1 << 20),
        "norm_eps": ModelField("layer_norm_epsilon", "attention.layer_norm_rms_epsilon", 1e-5),
        "tied": ModelField("tie_word_embeddings", "", False),
    },
    tensors={
        "embed": TensorNames("backbone.embeddings", "token_embd"),
        "final_norm": TensorNames("backbone.norm_f", "output_norm"),
        "lm_head": TensorNames("lm_head", "output"),
        "attn_norm": TensorNames("norm", "attn_norm"),
        **scan_tensors("mixer"),
    },
    harmless={
        "use_bias": (False,),
        "hidden_act": ("silu",),
        "feed_forward_length": (0,),
        "attention.head_count": (0,),
        "attention.head_count_kv": (0,),
        "intermediate_size": None,
        **dict.fromkeys(("residual_in_fp32", "rescale_prenorm_residual", "chunk_size", "rms_norm")),
        **dict.fromkeys(("time_step_rank", "time_step_min", "time_step_max", "time_step_floor")),
    },
    hf_layers="backbone.layers",
)
