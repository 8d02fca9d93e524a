"""EmbeddingGemma: Gemma 3 whose tokens see both sides, windows included; it writes nothing."""

from msgspec.structs import replace

from kvasir.models.families.gemma3 import GEMMA3
from kvasir.models.family import ModelField

_DENSE = tuple(f"dense_{n}_feat_{side}" for n in (2, 3) for side in ("in", "out"))
_CAPS = ("attention_softcap", "final_softcap")

GEMMA_EMBEDDING = replace(
    GEMMA3,
    name="gemma_embedding",
    architectures=("Gemma3TextModel",),
    gguf="gemma-embedding",
    block=replace(GEMMA3.block, both_ways=True),
    fields={
        **{name: GEMMA3.fields[name] for name in GEMMA3.fields.keys() - {*_CAPS}},
        "both_ways": ModelField("use_bidirectional_attention", "", False, True),
    },
    harmless={
        **GEMMA3.harmless,
        **{GEMMA3.fields[name].hf: () for name in _CAPS},
        "attention.causal": (False,),
        **dict.fromkeys(_DENSE),
    },
)
