"""ModernBERT, gte-modernbert: norms before the parts, rope, gated GELU and no biases. Every third
layer, the first among them, sees everything, the others a window on both sides."""

from msgspec.structs import replace

from kvasir.models.families.bert import BERT
from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_TRAINING = """
classifier_pooling classifier_activation classifier_bias decoder_bias embedding_dropout mlp_dropout
deterministic_flash_attn initializer_cutoff_factor position_embedding_type reference_compile
repad_logits_with_grad sparse_prediction sparse_pred_ignore_index cls_token_id
gradient_checkpointing layer_norm_eps tie_word_embeddings
"""

MODERN_BERT = replace(
    LLAMA,
    name="modern_bert",
    architectures=("ModernBertModel",),
    gguf="modern-bert",
    hf_layers="layers",
    block=BlockSpec(norm="layer", embed_norm=True, both_ways=True),
    fields={
        **{name: LLAMA.fields[name] for name in ("qkv_bias", "o_bias")},
        **{x: BERT.fields[x] for x in ("vocab_size", "hidden_size", "n_layers", "n_heads")},
        **{x: BERT.fields[x] for x in ("ffn_size", "max_positions", "n_kv_heads", "head_dim")},
        "act": ModelField("hidden_activation", "hidden_activation", "gelu", "gelu"),
        "mlp_bias": always(False),
        "norm_eps": ModelField("norm_eps", "attention.layer_norm_epsilon", 1e-5),
        "theta": ModelField("global_rope_theta", "rope.freq_base", 1.6e5, 1.6e5),
        "window_theta": ModelField("local_rope_theta", "rope.freq_base_swa", 1e4, 1e4),
        "window": ModelField("local_attention", "attention.sliding_window", 128, 0),
        "layer_types": ModelField("layer_types", ""),
        "full_every": ModelField(
            "global_attn_every_n_layers", "attention.sliding_window_pattern", 3, 3
        ),
        "full_first": always(True),
        "tied": always(True),
    },
    tensors={
        "embed": TensorNames("embeddings.tok_embeddings", "token_embd"),
        "embed_norm": TensorNames("embeddings.norm", "token_embd_norm"),
        "final_norm": TensorNames("final_norm", "output_norm"),
        "lm_head": TensorNames("decoder", "output"),
        "attn_norm": TensorNames("attn_norm", "attn_norm"),
        **{x: TensorNames("attn.Wqkv", "attn_qkv", *2 * (f"{x}_of_qkv",)) for x in "qkv"},
        "o": TensorNames("attn.Wo", "attn_output"),
        "mlp_norm": TensorNames("mlp_norm", "ffn_norm"),
        "gate": TensorNames("mlp.Wi", "ffn_up", "first_half", "first_half"),
        "up": TensorNames("mlp.Wi", "ffn_up", "second_half", "second_half"),
        "down": TensorNames("mlp.Wo", "ffn_down"),
    },
    harmless={
        **{"attention.causal": (False,), "norm_bias": (False,), "mlp_bias": (False,)},
        **{"attention.layer_norm_rms_epsilon": None, "classifier.pooling_type": None},
        **dict.fromkeys(_TRAINING.split()),
    },
)
