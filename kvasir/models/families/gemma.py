"""Gemma 1: Llama with norms of 1 + weight. Whatever its configs call the activation, it was trained
with GELU by tanh."""

from msgspec.structs import replace

from kvasir.models.families.gemma2 import GEMMA2
from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, always

_ACTS = ("gelu", "gelu_pytorch_tanh")

GEMMA = replace(
    LLAMA,
    name="gemma",
    architectures=("GemmaForCausalLM",),
    gguf="gemma",
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 16, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 256, 0),
        "act": always("gelu_pytorch_tanh"),
        "mlp_bias": always(False),
        "tied": ModelField("tie_word_embeddings", "", True),
        "window": always(0),
    },
    tensors={
        **{name: GEMMA2.tensors[name] for name in LLAMA.tensors},
        "mlp_norm": LLAMA.tensors["mlp_norm"]._replace(hf_step="plus_one"),
    },
    harmless={**LLAMA.harmless, "hidden_act": _ACTS, "hidden_activation": _ACTS},
    sqrt_embed=True,
)
