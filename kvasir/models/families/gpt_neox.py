"""GPT-NeoX, Pythia: attention and MLP beside each other behind norms of their own, unless told
otherwise. Each head's query, key and value stand together in one tensor."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_BIAS = ModelField("attention_bias", "", True)

GPT_NEOX = replace(
    LLAMA,
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    gguf="gptneox",
    hf_layers="gpt_neox.layers",
    block=BlockSpec(norm="layer_bias", gated=False),
    fields={
        **LLAMA.fields,
        "n_kv_heads": always(0),
        "head_dim": always(0),
        "act": ModelField("hidden_act", "", "gelu", "gelu"),
        "qkv_bias": _BIAS,
        "o_bias": _BIAS,
        "mlp_bias": always(True),
        "norm_eps": ModelField("layer_norm_eps", "attention.layer_norm_epsilon", 1e-5),
        "theta": ModelField("rotary_emb_base", "rope.freq_base", 1e4, 1e4),
        "rotary_share": ModelField("rotary_pct", "", 0.25),
        "parallel": ModelField("use_parallel_residual", "use_parallel_residual", True, True),
        "window": always(0),
    },
    tensors={
        "embed": TensorNames("gpt_neox.embed_in", "token_embd"),
        "final_norm": TensorNames("gpt_neox.final_layer_norm", "output_norm"),
        "lm_head": TensorNames("embed_out", "output"),
        "attn_norm": TensorNames("input_layernorm", "attn_norm"),
        **{
            x: TensorNames("attention.query_key_value", "attn_qkv", f"{x}_of_groups", f"{x}_of_qkv")
            for x in "qkv"
        },
        "o": TensorNames("attention.dense", "attn_output"),
        "mlp_norm": TensorNames("post_attention_layernorm", "ffn_norm"),
        "up": TensorNames("mlp.dense_h_to_4h", "ffn_up"),
        "down": TensorNames("mlp.dense_4h_to_h", "ffn_down"),
    },
)
