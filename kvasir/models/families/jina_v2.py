"""jina-embeddings-v2: BERT with ALiBi in place of positions, and a gated MLP."""

from msgspec.structs import replace

from kvasir.models.families.bert import BERT
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

JINA_V2 = replace(
    BERT,
    name="jina_v2",
    architectures=("JinaBertModel", "JinaBertForMaskedLM"),
    gguf="jina-bert-v2",
    block=BlockSpec(norm="layer_bias", sum_norms=True, both_ways=True, down_bias=True),
    fields={
        **BERT.fields,
        "act": always("gelu"),
        "mlp_bias": always(False),
        "learned_positions": always(False),
        "no_rope_every": always(1),
        "positions_by": ModelField("position_embedding_type", "", None, "alibi"),
    },
    tensors={
        **{x: y for x, y in BERT.tensors.items() if x != "positions"},
        "gate": TensorNames("mlp.gated_layers", "ffn_up", "first_half", "first_half"),
        "up": TensorNames("mlp.gated_layers", "ffn_up", "second_half", "second_half"),
        "down": TensorNames("mlp.wo", "ffn_down"),
        "mlp_norm": TensorNames("mlp.layernorm", "layer_output_norm"),
    },
    harmless={
        **{x: y for x, y in BERT.harmless.items() if x != "position_embedding_type"},
        **dict.fromkeys(("hidden_act", "model_max_length", "attn_implementation")),
        "feed_forward_type": ("geglu",),
        "emb_pooler": ("mean",),
        "attention.max_alibi_bias": (8.0,),
    },
)
