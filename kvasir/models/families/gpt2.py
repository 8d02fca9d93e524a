"""GPT-2: learned positions; matrices have their outputs as columns."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

GPT2 = replace(
    LLAMA,
    name="gpt2",
    architectures=("GPT2LMHeadModel",),
    gguf="gpt2",
    hf_layers="transformer.h",
    block=BlockSpec(norm="layer_bias", gated=False),
    fields={
        "vocab_size": LLAMA.fields["vocab_size"],
        "hidden_size": ModelField("n_embd", "embedding_length"),
        "n_layers": ModelField("n_layer", "block_count"),
        "n_heads": ModelField("n_head", "attention.head_count"),
        "n_kv_heads": always(0),
        "head_dim": always(0),
        "ffn_size": ModelField("n_inner", "feed_forward_length", 0),
        "act": ModelField("activation_function", "", "gelu_new", "gelu_new"),
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), always(True)),
        "max_positions": ModelField("n_positions", "context_length"),
        "norm_eps": ModelField("layer_norm_epsilon", "attention.layer_norm_epsilon", 1e-5),
        "theta": always(1e4),
        "learned_positions": always(True),
        "tied": ModelField("tie_word_embeddings", "", True),
    },
    tensors={
        "embed": TensorNames("transformer.wte", "token_embd"),
        "positions": TensorNames("transformer.wpe", "position_embd"),
        "final_norm": TensorNames("transformer.ln_f", "output_norm"),
        "lm_head": TensorNames("lm_head", "output"),
        "attn_norm": TensorNames("ln_1", "attn_norm"),
        **{
            x: TensorNames("attn.c_attn", "attn_qkv", f"{x}_of_columns", f"{x}_of_qkv")
            for x in "qkv"
        },
        "o": TensorNames("attn.c_proj", "attn_output", "transposed"),
        "mlp_norm": TensorNames("ln_2", "ffn_norm"),
        "up": TensorNames("mlp.c_fc", "ffn_up", "transposed"),
        "down": TensorNames("mlp.c_proj", "ffn_down", "transposed"),
    },
    harmless={
        **LLAMA.harmless,
        "n_ctx": None,
        "reorder_and_upcast_attn": None,
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
)
