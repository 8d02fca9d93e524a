"""RoBERTa, XLM-R, CamemBERT: BERT whose positions begin behind that of its padding."""

from msgspec.structs import replace

from kvasir.models.families.bert import BERT
from kvasir.models.family import ModelField, TensorNames

ROBERTA = replace(
    BERT,
    name="roberta",
    architectures=("RobertaModel", "XLMRobertaModel", "CamembertModel"),
    gguf="",
    fields={**BERT.fields, "padding_id": ModelField("pad_token_id", "", 1, -1)},
    tensors={
        **BERT.tensors,
        "positions": TensorNames("embeddings.position_embeddings", "position_embd", "last_rows"),
        "lm_head": TensorNames("lm_head.decoder", "output"),
    },
)
