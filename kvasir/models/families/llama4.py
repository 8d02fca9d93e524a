"""Llama 4 (text): layers with rope see chunks, and norm queries and keys behind it; the queries of
the others, without rope, grow with their position. Experts read rows that are weighed before."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_SIZE = ModelField("intermediate_size", "expert_feed_forward_length", 8192)
_IN = "feed_forward.experts.gate_up_proj."
_KEPT = ("embed", "final_norm", "lm_head", "attn_norm", "v", "o", "mlp_norm")

LLAMA4 = replace(
    LLAMA,
    name="llama4",
    architectures=("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    gguf="llama4",
    text_key="text_config",
    text_alone=True,
    unread_tower=("vision_model.", "multi_modal_projector.", "model.vision_model."),
    block=BlockSpec(qk_norm="bare", interleaved_rope=True, chunked=True, weighs_input=True),
    unnormed_experts=128,
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 8, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 128, 0),
        "ffn_size": ModelField("intermediate_size_mlp", "feed_forward_length", 16384),
        "mlp_bias": always(False),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "theta": ModelField("rope_theta", "rope.freq_base", 5e5, 1e4),
        "qk_norm": ModelField("use_qk_norm", "", True),
        "window": ModelField("attention_chunk_size", "", 8192, 8192),
        "layer_types": ModelField("layer_types"),
        "rope_layers": ModelField("no_rope_layers"),
        "no_rope_every": ModelField("no_rope_layer_interval", "", 4, 4),
        "grows": ModelField("attn_temperature_tuning", "", True, True),
        "still_beta": ModelField("attn_scale", "", 0.1, 0.1),
        "still_step": ModelField("floor_scale", "", 8192, 8192),
        "n_experts": ModelField("num_local_experts", "expert_count", 16),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 1),
        "normalize": always(False),
        "expert_score": always("late_sigmoid"),
        "expert_size": _SIZE,
        "shared_size": _SIZE,
        "sparse_every": ModelField("interleave_moe_layer_step", "interleave_moe_layer_step", 1, 1),
        "sparse_layers": ModelField("moe_layers"),
    },
    tensors={
        **{name: LLAMA.tensors[name] for name in _KEPT},
        **{name: LLAMA.tensors[name]._replace(gguf_step="") for name in ("q", "k")},
        **{
            name: TensorNames(f"feed_forward.{name}_proj", f"ffn_{name}")
            for name in ("gate", "up", "down")
        },
        **{
            f"shared.{name}": TensorNames(
                f"feed_forward.shared_expert.{name}_proj", f"ffn_{name}_shexp"
            )
            for name in ("gate", "up", "down")
        },
        "router": TensorNames("feed_forward.router", "ffn_gate_inp"),
        "experts.gate": TensorNames(_IN, "ffn_gate_exps", "inputs_last first_half"),
        "experts.up": TensorNames(_IN, "ffn_up_exps", "inputs_last second_half"),
        "experts.down": TensorNames(
            "feed_forward.experts.down_proj.", "ffn_down_exps", "inputs_last"
        ),
    },
    harmless={
        "for_llm_compressor": (False,),
        "attention.sliding_window": (8192,),
        "expert_gating_func": (2,),
    },
)
