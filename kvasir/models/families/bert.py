"""BERT, MiniLM, bge, gte: encoders. A token sees all others, positions are learned, and each sum is
normed."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

BERT = replace(
    LLAMA,
    name="bert",
    architectures=("BertModel",),
    gguf="bert",
    hf_layers="encoder.layer",
    block=BlockSpec(norm="layer_bias", gated=False, sum_norms=True, both_ways=True),
    fields={
        **{x: LLAMA.fields[x] for x in ("vocab_size", "hidden_size", "n_layers", "n_heads")},
        **{x: LLAMA.fields[x] for x in ("ffn_size", "max_positions")},
        "n_kv_heads": always(0),
        "head_dim": always(0),
        "act": ModelField("hidden_act", "", "gelu", "gelu"),
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), always(True)),
        "norm_eps": ModelField("layer_norm_eps", "attention.layer_norm_epsilon", 1e-12),
        "theta": always(1e4),
        "learned_positions": always(True),
        "n_types": ModelField("type_vocab_size", "", 2, 0),
        "tied": always(True),
    },
    tensors={
        "embed": TensorNames("embeddings.word_embeddings", "token_embd"),
        "types": TensorNames("embeddings.token_type_embeddings", "token_types"),
        "positions": TensorNames("embeddings.position_embeddings", "position_embd"),
        "embed_norm": TensorNames("embeddings.LayerNorm", "token_embd_norm"),
        "lm_head": TensorNames("cls.predictions.decoder", "output"),
        "q": TensorNames("attention.self.query", "attn_q"),
        "k": TensorNames("attention.self.key", "attn_k"),
        "v": TensorNames("attention.self.value", "attn_v"),
        "o": TensorNames("attention.output.dense", "attn_output"),
        "attn_norm": TensorNames("attention.output.LayerNorm", "attn_output_norm"),
        "up": TensorNames("intermediate.dense", "ffn_up"),
        "down": TensorNames("output.dense", "ffn_down"),
        "mlp_norm": TensorNames("output.LayerNorm", "layer_output_norm"),
    },
    harmless={
        "hidden_dropout_prob": None,
        "attention_probs_dropout_prob": None,
        "gradient_checkpointing": None,
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": None,
        "attention.causal": (False,),
    },
)
