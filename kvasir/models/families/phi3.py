"""Phi-3, Phi-4 and Phi-4-mini: Llama with q, k and v in one tensor, gate and up in another; in both
kinds of file."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always

_NEVER = ("qkv_bias", "o_bias", "mlp_bias")

PHI3 = replace(
    LLAMA,
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    gguf="phi3",
    fields={
        **LLAMA.fields,
        **dict.fromkeys(_NEVER, always(False)),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "rotary_share": ModelField("partial_rotary_factor", "", 1.0, 1.0),
        "window": ModelField("sliding_window", "attention.sliding_window", 0, 0),
    },
    tensors={
        **LLAMA.tensors,
        "q": TensorNames("self_attn.qkv_proj", "attn_qkv", "q_of_qkv", "q_of_qkv"),
        "k": TensorNames("self_attn.qkv_proj", "attn_qkv", "k_of_qkv", "k_of_qkv"),
        "v": TensorNames("self_attn.qkv_proj", "attn_qkv", "v_of_qkv", "v_of_qkv"),
        "gate": TensorNames("mlp.gate_up_proj", "ffn_up", "first_half", "first_half"),
        "up": TensorNames("mlp.gate_up_proj", "ffn_up", "second_half", "second_half"),
    },
    harmless={
        **LLAMA.harmless,
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "lm_head_bias": (False,),
        "original_max_position_embeddings": None,
        "embd_pdrop": None,
        "resid_pdrop": None,
        "full_attn_mod": (1,),
        "interpolate_factor": (1,),
    },
)
