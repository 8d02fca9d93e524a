"""jina-embeddings-v3 without its adapters: BERT with rope, and tokens of one type. Released folders
have queries, keys and values in one tensor, those that ``transformers`` saves in three."""

from msgspec.structs import replace

from kvasir.models.families.bert import BERT
from kvasir.models.family import ModelField, TensorNames, always

_QKV = {x: TensorNames("mixer.Wqkv", "attn_qkv", f"{x}_of_qkv", f"{x}_of_qkv") for x in "qkv"}

JINA_V3 = replace(
    BERT,
    name="jina_v3",
    architectures=("JinaEmbeddingsV3Model",),
    gguf="jina-bert-v3",
    hf_layers="encoder.layers",
    fields={
        **BERT.fields,
        "norm_eps": ModelField("layer_norm_eps", "attention.layer_norm_epsilon", 1e-5),
        "theta": ModelField("rope_theta", "rope.freq_base", 2e4, 1e4),
        "learned_positions": always(False),
        "n_types": ModelField("type_vocab_size", "", 1, 0),
    },
    tensors={
        **{name: BERT.tensors[name] for name in ("embed", "types", "lm_head")},
        **_QKV,
        "embed_norm": TensorNames("emb_ln", "token_embd_norm"),
        "o": TensorNames("mixer.out_proj", "attn_output"),
        "attn_norm": TensorNames("norm1", "attn_output_norm"),
        "up": TensorNames("mlp.fc1", "ffn_up"),
        "down": TensorNames("mlp.fc2", "ffn_down"),
        "mlp_norm": TensorNames("norm2", "layer_output_norm"),
    },
)
JINA_V3_SAVED = replace(
    JINA_V3,
    name="jina_v3_saved",
    gguf="",
    hf_layers="layers",
    tensors={
        **JINA_V3.tensors,
        **{x: TensorNames(f"self_attn.{x}_proj", f"attn_{x}") for x in "qkv"},
        "embed_norm": TensorNames("embeddings.LayerNorm", "token_embd_norm"),
        "o": TensorNames("self_attn.o_proj", "attn_output"),
        "attn_norm": TensorNames("post_attention_layernorm", "attn_output_norm"),
        "mlp_norm": TensorNames("post_mlp_layernorm", "layer_output_norm"),
    },
)
