"""LLaVA-OneVision: a Qwen 2 that sees, with a SigLIP tower without its last norm, an image in one
tile and in tiles of its shape, and a row behind each line of these."""

from msgspec.structs import replace

from kvasir.models.families.qwen2 import QWEN2
from kvasir.models.families.siglip import SIGLIP, SIGLIP_FIELDS, SIGLIP_TENSORS
from kvasir.models.family import ModelField, TensorNames, TowerSpec

LLAVA_ONEVISION = replace(
    QWEN2,
    name="llava_onevision",
    architectures=("LlavaOnevisionForConditionalGeneration",),
    gguf="",
    text_key="text_config",
    text_ties=True,
    tower=TowerSpec(
        encoders=(
            *("model.vision_tower.vision_model.", "vision_tower.vision_model."),
            *("model.vision_tower.", "vision_tower."),
        ),
        connectors=("model.multi_modal_projector.", "multi_modal_projector."),
        newlines=("model.image_newline", "image_newline"),
        cuts="paved",
        block=SIGLIP,
        fields=SIGLIP_FIELDS,
        tensors={name: SIGLIP_TENSORS[name] for name in SIGLIP_TENSORS.keys() - {"norm"}},
        unused=("head.", "post_layernorm."),
        connector={
            "proj_in": TensorNames("linear_1", ""),
            "proj": TensorNames("linear_2", ""),
        },
        image=ModelField("image_token_index", default=151646),
        harmless={"model_type": ("siglip_vision_model",), "vision_use_head": (False, True)},
        above={
            "vision_feature_layer": (-1,),
            "vision_feature_select_strategy": ("full",),
            "projector_hidden_act": ("gelu",),
            "multimodal_projector_bias": (True,),
        },
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
    ),
    harmless={**QWEN2.harmless, "model_type": ("qwen2",)},
)
