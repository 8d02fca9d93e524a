"""OLMo 2: norms after attention and MLP alone, and of all heads of q and of k as one row. GGUF
files of OLMo 3 say "olmo2", too: with windows, whose layers' rope is not scaled."""

from msgspec.structs import replace

from kvasir.models.families.exaone4 import EXAONE4
from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, always
from kvasir.models.spec import BlockSpec

OLMO2 = replace(
    LLAMA,
    name="olmo2",
    architectures=("Olmo2ForCausalLM",),
    gguf="olmo2",
    block=BlockSpec(qk_norm="width", pre_norms=False, post_norms=True),
    fields={
        **LLAMA.fields,
        "mlp_bias": always(False),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "layer_types": ModelField("", "attention.sliding_window_pattern"),
        "full_every": always(4),
        "window_theta": ModelField("", "rope.freq_base_swa", 0.0, 0.0),
    },
    tensors=EXAONE4.tensors,
)
