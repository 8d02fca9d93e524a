"""Phi 1, 1.5 and 2: attention and MLP beside each other behind one norm, biases everywhere, in the
LM head too."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

PHI = replace(
    LLAMA,
    name="phi",
    architectures=("PhiForCausalLM",),
    gguf="phi2",
    block=BlockSpec(norm="layer_bias", one_norm=True, gated=False),
    fields={
        **LLAMA.fields,
        "act": ModelField("hidden_act", "", "gelu_new", "gelu_new"),
        "qkv_bias": always(True),
        "o_bias": always(True),
        "mlp_bias": always(True),
        "head_bias": always(True),
        "norm_eps": ModelField("layer_norm_eps", "attention.layer_norm_epsilon", 1e-5),
        "rotary_share": ModelField("partial_rotary_factor", "", 0.5),
        "parallel": always(True),
        "window": always(0),
    },
    tensors={
        **{name: LLAMA.tensors[name] for name in ("embed", "lm_head", "attn_norm")},
        "final_norm": TensorNames("model.final_layernorm", "output_norm"),
        "q": TensorNames("self_attn.q_proj", "attn_q"),
        "k": TensorNames("self_attn.k_proj", "attn_k"),
        "v": TensorNames("self_attn.v_proj", "attn_v"),
        "o": TensorNames("self_attn.dense", "attn_output"),
        "up": TensorNames("mlp.fc1", "ffn_up"),
        "down": TensorNames("mlp.fc2", "ffn_down"),
    },
    harmless={**LLAMA.harmless, "qk_layernorm": (False,)},
)
