"""EXAONE 4: norms after attention and MLP alone; where layers slide, the others have no rope."""

from msgspec.structs import replace

from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

EXAONE4 = replace(
    QWEN3,
    name="exaone4",
    architectures=("Exaone4ForCausalLM",),
    gguf="exaone4",
    block=BlockSpec(qk_norm="heads", pre_norms=False, post_norms=True),
    fields={
        **{name: QWEN3.fields[name] for name in QWEN3.fields.keys() - {"use_windows"}},
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 32, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 0, 0),
        "qkv_bias": always(False),
        "o_bias": always(False),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "window": ModelField("sliding_window", "attention.sliding_window", 4096, 0),
        "first_window": always(0),
        "full_every": ModelField("sliding_window_pattern", "", 4, 4),
        "layer_types": ModelField("layer_types", "attention.sliding_window_pattern"),
    },
    tensors={
        **{name: QWEN3.tensors[name] for name in QWEN3.tensors.keys() - {"attn_norm", "mlp_norm"}},
        "attn_post_norm": TensorNames("post_attention_layernorm", "post_attention_norm"),
        "mlp_post_norm": TensorNames("post_feedforward_layernorm", "post_ffw_norm"),
    },
    full_without_rope=True,
)
