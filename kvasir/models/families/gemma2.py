"""Gemma 2: Gemma 3 without norms of heads, with one rope; every other layer is full."""

from msgspec.structs import replace

from kvasir.models.families.gemma3 import GEMMA3
from kvasir.models.family import ModelField, always
from kvasir.models.spec import BlockSpec

GEMMA2 = replace(
    GEMMA3,
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    gguf="gemma2",
    block=BlockSpec(post_norms=True),
    fields={
        **{name: GEMMA3.fields[name] for name in GEMMA3.fields.keys() - {"window_theta"}},
        "theta": ModelField("rope_theta", "rope.freq_base", 1e4, 1e4),
        "full_every": always(2),
        "attention_softcap": ModelField(
            "attn_logit_softcapping", "attn_logit_softcapping", 50.0, 50.0
        ),
        "final_softcap": ModelField(
            "final_logit_softcapping", "final_logit_softcapping", 30.0, 30.0
        ),
    },
    tensors={name: GEMMA3.tensors[name] for name in GEMMA3.tensors.keys() - {"q_norm", "k_norm"}},
    wide_scale_layers=46,
)
