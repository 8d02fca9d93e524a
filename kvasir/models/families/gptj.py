"""GPT-J: attention and MLP beside each other behind one norm, neighbours rotated in the first part
of each head."""

from msgspec.structs import replace

from kvasir.models.families.phi import PHI
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

GPTJ = replace(
    PHI,
    name="gptj",
    architectures=("GPTJForCausalLM",),
    gguf="",
    hf_layers="transformer.h",
    block=BlockSpec(norm="layer_bias", one_norm=True, gated=False, interleaved_rope=True),
    fields={
        **{name: PHI.fields[name] for name in PHI.fields.keys() - {"rotary_share"}},
        "hidden_size": ModelField("n_embd"),
        "n_layers": ModelField("n_layer"),
        "n_heads": ModelField("n_head"),
        "n_kv_heads": always(0),
        "head_dim": always(0),
        "ffn_size": ModelField("n_inner", "", 0),
        "act": ModelField("activation_function", "", "gelu_new"),
        "qkv_bias": always(False),
        "o_bias": always(False),
        "max_positions": ModelField("n_positions"),
        "norm_eps": ModelField("layer_norm_epsilon", "", 1e-5),
        "theta": always(1e4),
        "rotary_dim": ModelField("rotary_dim", "", 64),
    },
    tensors={
        "embed": TensorNames("transformer.wte", ""),
        "final_norm": TensorNames("transformer.ln_f", ""),
        "lm_head": TensorNames("lm_head", ""),
        "attn_norm": TensorNames("ln_1", ""),
        **{name: TensorNames(f"attn.{name}_proj", "") for name in "qkv"},
        "o": TensorNames("attn.out_proj", ""),
        "up": TensorNames("mlp.fc_in", ""),
        "down": TensorNames("mlp.fc_out", ""),
    },
    harmless={**PHI.harmless, "n_ctx": None, "rotary": (True,), "scale_attn_weights": (True,)},
)
