"""gpt-oss: experts with biases and a clamped SwiGLU, a sink of each query head, every other layer
slides. Its folders have gate and up in turns, input by output."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_BOTH, _DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
_BIAS = ModelField("attention_bias", "", True)
_PLAIN = {name: names._replace(gguf_step="") for name, names in LLAMA.tensors.items()}

GPT_OSS = replace(
    LLAMA,
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    gguf="gpt-oss",
    block=BlockSpec(sinks=True, expert_bias=True),
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 8, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 64, 0),
        "ffn_size": ModelField("intermediate_size", "expert_feed_forward_length"),
        "act": always("clamped_swiglu"),
        "qkv_bias": _BIAS,
        "o_bias": _BIAS,
        "mlp_bias": always(False),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "theta": ModelField("rope_theta", "rope.freq_base", 1.5e5, 1e4),
        "yarn_truncate": ModelField("", "", True, False),
        "window": ModelField("sliding_window", "attention.sliding_window", 128, 0),
        "full_every": always(2),
        "layer_types": ModelField("layer_types"),
        "n_experts": ModelField("num_local_experts", "expert_count", 128),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 4),
    },
    tensors={
        **{name: _PLAIN[name] for name in _PLAIN.keys() - {"gate", "up", "down"}},
        "mlp_norm": TensorNames("post_attention_layernorm", "post_attention_norm"),
        "sinks": TensorNames("self_attn.sinks.", "attn_sinks"),
        "router": TensorNames("mlp.router", "ffn_gate_inp"),
        "experts.gate": TensorNames(f"{_BOTH}.", "ffn_gate_exps", "even_outputs"),
        "experts.up": TensorNames(f"{_BOTH}.", "ffn_up_exps", "odd_outputs"),
        "experts.down": TensorNames(f"{_DOWN}.", "ffn_down_exps", "inputs_last"),
        "experts.gate_bias": TensorNames(f"{_BOTH}_bias.", "ffn_gate_exps.bias.", "even_outputs"),
        "experts.up_bias": TensorNames(f"{_BOTH}_bias.", "ffn_up_exps.bias.", "odd_outputs"),
        "experts.down_bias": TensorNames(f"{_DOWN}_bias.", "ffn_down_exps.bias."),
    },
    harmless={
        **LLAMA.harmless,
        "feed_forward_length": None,
        "experts_per_token": None,
        "initial_context_length": None,
        "hidden_act": ("silu",),
        "swiglu_limit": (7.0,),
        "swiglu_alpha": (1.702,),
    },
)
