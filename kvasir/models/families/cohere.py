"""Command R, Aya: layer norms without bias, attention and MLP beside each other, neighbours
rotated, logits scaled."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, always
from kvasir.models.spec import BlockSpec

COHERE = replace(
    LLAMA,
    name="cohere",
    architectures=("CohereForCausalLM",),
    gguf="command-r",
    block=BlockSpec(norm="layer", one_norm=True, interleaved_rope=True),
    fields={
        **LLAMA.fields,
        "mlp_bias": always(False),
        "norm_eps": ModelField("layer_norm_eps", "attention.layer_norm_epsilon", 1e-5),
        "theta": ModelField("rope_theta", "rope.freq_base", 5e5, 1e4),
        "logit_scale": ModelField("logit_scale", "logit_scale", 0.0625, 1.0),
        "parallel": always(True),
        "window": always(0),
        "tied": ModelField("tie_word_embeddings", "", True),
    },
    tensors={
        name: LLAMA.tensors[name]._replace(gguf_step="")
        for name in LLAMA.tensors.keys() - {"mlp_norm"}
    },
    harmless={
        **LLAMA.harmless,
        "use_qk_norm": (False,),
        "model_max_length": None,
        "layer_norm_bias": (False,),
    },
)
