"""Falcon 7B, 11B: attention and MLP beside each other behind one norm. Each key stands behind its
queries, and its value behind it, in one tensor; in 7B there is one for all of them."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_BIAS = ModelField("bias", "", False)

FALCON = replace(
    LLAMA,
    name="falcon",
    architectures=("FalconForCausalLM",),
    gguf="falcon",
    hf_layers="transformer.h",
    block=BlockSpec(norm="layer_bias", one_norm=True, gated=False),
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_kv_heads", "attention.head_count_kv", 0, 0),
        "multi_query": ModelField("multi_query", "", True, False),
        "grouped_query": ModelField("new_decoder_architecture", "", False, False),
        "head_dim": always(0),
        "ffn_size": ModelField("ffn_hidden_size", "feed_forward_length", 0),
        "act": ModelField("activation", "", "gelu", "gelu"),
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), _BIAS),
        "max_positions": ModelField("max_position_embeddings", "context_length", 2048),
        "norm_eps": ModelField("layer_norm_epsilon", "attention.layer_norm_epsilon", 1e-5),
        "parallel": always(True),
        "window": always(0),
        "tied": ModelField("tie_word_embeddings", "", True),
    },
    tensors={
        "embed": TensorNames("transformer.word_embeddings", "token_embd"),
        "final_norm": TensorNames("transformer.ln_f", "output_norm"),
        "lm_head": TensorNames("lm_head", "output"),
        "attn_norm": TensorNames("input_layernorm", "attn_norm"),
        **{
            x: TensorNames(
                "self_attention.query_key_value", "attn_qkv", f"{x}_of_groups", f"{x}_of_qkv"
            )
            for x in "qkv"
        },
        "o": TensorNames("self_attention.dense", "attn_output"),
        "up": TensorNames("mlp.dense_h_to_4h", "ffn_up"),
        "down": TensorNames("mlp.dense_4h_to_h", "ffn_down"),
    },
    harmless={
        **LLAMA.harmless,
        "alibi": (False,),
        "parallel_attn": (True,),
        "num_ln_in_parallel_attn": None,
        "apply_residual_connection_post_layernorm": (False,),
    },
)
