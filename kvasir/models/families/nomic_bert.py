"""nomic-embed-text: BERT with rope, a gated MLP and no biases but those of norms."""

from msgspec.structs import replace

from kvasir.models.families.bert import BERT
from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always

_QKV = {x: TensorNames("attn.Wqkv", "attn_qkv", f"{x}_of_qkv", f"{x}_of_qkv") for x in "qkv"}

NOMIC_BERT = replace(
    BERT,
    name="nomic_bert",
    architectures=("NomicBertModel",),
    gguf="nomic-bert",
    hf_layers="encoder.layers",
    block=replace(BERT.block, gated=True),
    fields={
        **BERT.fields,
        "head_dim": ModelField("head_dim", "attention.key_length", 0, 0),
        "act": ModelField("hidden_act", "", "silu", "silu"),
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), always(False)),
        "theta": ModelField("rope_theta", "rope.freq_base", 1e3, 1e3),
        "learned_positions": always(False),
    },
    tensors={
        **{name: BERT.tensors[name] for name in ("embed", "types", "lm_head")},
        **_QKV,
        "embed_norm": TensorNames("emb_ln", "token_embd_norm"),
        "o": TensorNames("attn.out_proj", "attn_output"),
        "attn_norm": TensorNames("norm1", "attn_output_norm"),
        "gate": TensorNames("mlp.fc12", "ffn_gate"),
        "up": TensorNames("mlp.fc11", "ffn_up"),
        "down": TensorNames("mlp.fc2", "ffn_down"),
        "mlp_norm": TensorNames("norm2", "layer_output_norm"),
    },
    harmless={
        **LLAMA.harmless,
        **BERT.harmless,
        **dict.fromkeys(("prenorm", "causal", "use_rms_norm", "parallel_block"), (False,)),
    },
)
