"""OLMo 3: OLMo 2 with windows in three layers of four, whose rope is not scaled."""

from msgspec.structs import replace

from kvasir.models.families.olmo2 import OLMO2
from kvasir.models.family import ModelField

OLMO3 = replace(
    OLMO2,
    name="olmo3",
    architectures=("Olmo3ForCausalLM",),
    gguf="",
    fields={
        **OLMO2.fields,
        "theta": ModelField("rope_theta", "rope.freq_base", 5e5),
        "window": ModelField("sliding_window", "", 4096),
        "layer_types": ModelField("layer_types"),
    },
)
