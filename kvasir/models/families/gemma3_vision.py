"""Gemma 3 that sees: a SigLIP tower, means of whose patches are rows; an image is one tile, whose
tokens see each other."""

from msgspec.structs import replace

from kvasir.models.families.gemma3 import GEMMA3
from kvasir.models.families.siglip import SIGLIP, SIGLIP_FIELDS, SIGLIP_TENSORS
from kvasir.models.family import ModelField, TensorNames, TowerSpec

_SIZES = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "n_layers": 26,
    "n_heads": 8,
    "ffn_size": 9216,
    "max_positions": 131072,
}
"""Of files that do not say them."""

GEMMA3_VISION = replace(
    GEMMA3,
    name="gemma3_vision",
    architectures=("Gemma3ForConditionalGeneration",),
    gguf="",
    block=replace(GEMMA3.block, spans=True),
    text_key="text_config",
    tower=TowerSpec(
        encoders=(
            *("model.vision_tower.vision_model.", "vision_tower.vision_model."),
            *("model.vision_tower.", "vision_tower."),
        ),
        connectors=("model.multi_modal_projector.", "multi_modal_projector."),
        block=SIGLIP,
        fields=SIGLIP_FIELDS,
        tensors=SIGLIP_TENSORS,
        connector={
            "soft_norm": TensorNames("mm_soft_emb_norm", "", hf_step="plus_one"),
            "proj": TensorNames("mm_input_projection_weight.", "", hf_step="transposed"),
        },
        image=ModelField("image_token_index", default=262144),
        cuts="whole",
    ),
    fields={
        **GEMMA3.fields,
        **{name: GEMMA3.fields[name]._replace(default=n) for name, n in _SIZES.items()},
    },
)
