"""Gemma 3: norms of 1 + weight on both sides of attention and MLP; every sixth layer is full."""

from msgspec.structs import replace

from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_NAMES = {
    **QWEN3.tensors,
    "attn_post_norm": TensorNames("post_attention_layernorm", "post_attention_norm"),
    "mlp_norm": TensorNames("pre_feedforward_layernorm", "ffn_norm"),
    "mlp_post_norm": TensorNames("post_feedforward_layernorm", "post_ffw_norm"),
}

GEMMA3 = replace(
    QWEN3,
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    gguf="gemma3",
    block=BlockSpec(qk_norm="heads", post_norms=True),
    fields={
        **{name: QWEN3.fields[name] for name in QWEN3.fields.keys() - {"use_windows"}},
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 4, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 256, 0),
        "act": ModelField("hidden_activation", "", "gelu_pytorch_tanh", "gelu_pytorch_tanh"),
        "theta": ModelField("rope_theta", "rope.freq_base", 1e6, 1e6),
        "window_theta": ModelField("rope_local_base_freq", "rope.freq_base_swa", 1e4, 1e4),
        "window": ModelField("sliding_window", "attention.sliding_window", 4096, 0),
        "first_window": always(0),
        "full_every": ModelField(
            "sliding_window_pattern", "attention.sliding_window_pattern", 6, 6
        ),
        "query_scalar": ModelField("query_pre_attn_scalar", "", 256.0, 0.0),
        "attention_softcap": ModelField(
            "attn_logit_softcapping", "attn_logit_softcapping", 0.0, 0.0
        ),
        "final_softcap": ModelField("final_logit_softcapping", "final_logit_softcapping", 0.0, 0.0),
        "tied": ModelField("tie_word_embeddings", "", True),
    },
    tensors={
        name: each._replace(hf_step="plus_one") if name.endswith("norm") else each
        for name, each in _NAMES.items()
    },
    sqrt_embed=True,
    wide_scale_layers=62,
)
