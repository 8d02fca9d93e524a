"""Gemma 4 (text): layers that keep everything have heads of their own size and number, and keys
that may be values, too; the last layers read the keys and values of others; each layer has
embeddings of its own; experts beside the MLP."""

from msgspec.structs import replace

from kvasir.models.families.gemma3 import GEMMA3
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_IN = "experts.gate_up_proj."
_GONE = ("attention_softcap", "query_scalar", "first_window")

GEMMA4 = replace(
    GEMMA3,
    name="gemma4",
    architectures=("Gemma4ForCausalLM",),
    gguf="gemma4",
    block=BlockSpec(qk_norm="all", post_norms=True, beside=True, layer_scale=True),
    fields={
        **{name: GEMMA3.fields[name] for name in GEMMA3.fields.keys() - {*_GONE}},
        "head_dim": ModelField("head_dim", "attention.key_length_swa", 256),
        "full_head_dim": ModelField("global_head_dim", "attention.key_length", 512),
        "full_kv_heads": ModelField("num_global_key_value_heads", "", 0),
        "keys_are_values": ModelField("attention_k_eq_v", "", False),
        "shared_layers": ModelField("num_kv_shared_layers", "attention.shared_kv_layers", 0, 0),
        "wide_shared": ModelField("use_double_wide_mlp", "", False, False),
        "layer_embed": ModelField(
            "hidden_size_per_layer_input", "embedding_length_per_layer_input", 256
        ),
        "layer_vocab": ModelField("vocab_size_per_layer_input", "", 262144, 0),
        "theta": ModelField("", "rope.freq_base", 1e6, 1e4),
        "window_theta": ModelField("", "rope.freq_base_swa", 1e4, 0.0),
        "window": ModelField("sliding_window", "attention.sliding_window", 512),
        "full_every": always(6),
        "layer_types": ModelField("layer_types", "attention.sliding_window_pattern"),
        "attention_scale": always(1.0),
        "n_experts": ModelField("num_experts", "expert_count", 0, 0),
        "has_experts": ModelField("enable_moe_block", "", False, True),
        "top_k": ModelField("top_k_experts", "expert_used_count"),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length"),
    },
    tensors={
        **{name: each._replace(hf_step="") for name, each in GEMMA3.tensors.items()},
        "layer_embed": TensorNames("model.embed_tokens_per_layer", "per_layer_token_embd"),
        "layer_proj": TensorNames("model.per_layer_model_projection", "per_layer_model_proj"),
        "layer_proj_norm": TensorNames("model.per_layer_projection_norm", "per_layer_proj_norm"),
        "own_gate": TensorNames("per_layer_input_gate", "inp_gate"),
        "own_proj": TensorNames("per_layer_projection", "proj"),
        "own_post_norm": TensorNames("post_per_layer_input_norm", "post_norm"),
        "layer_scale": TensorNames("layer_scalar.", "layer_output_scale", "repeated", "repeated"),
        "router": TensorNames("router.proj", "ffn_gate_inp"),
        "router_norm": TensorNames("router.scale.", "ffn_gate_inp.scale."),
        "expert_scale": TensorNames("router.per_expert_scale.", "ffn_down_exps.scale."),
        "experts.gate": TensorNames(_IN, "ffn_gate_up_exps", "first_half", "first_half"),
        "experts.up": TensorNames(_IN, "ffn_gate_up_exps", "second_half", "second_half"),
        "experts.down": TensorNames("experts.down_proj.", "ffn_down_exps"),
        "mlp_own_norm": TensorNames("post_feedforward_layernorm_1", "post_ffw_norm_1"),
        "experts_norm": TensorNames("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        "experts_post_norm": TensorNames("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    },
    harmless={
        **GEMMA3.harmless,
        "use_bidirectional_attention": (False, "vision"),
    },
    wide_scale_layers=0,
)
