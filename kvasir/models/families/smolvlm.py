"""SmolVLM and Idefics 3: a Llama that sees, with a SigLIP tower (``checkpoints.tower``)."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.families.siglip import SIGLIP, SIGLIP_FIELDS, SIGLIP_TENSORS
from kvasir.models.family import ModelField, TensorNames, TowerSpec

SMOLVLM = replace(
    LLAMA,
    name="smolvlm",
    architectures=("SmolVLMForConditionalGeneration", "Idefics3ForConditionalGeneration"),
    gguf="",
    hf_layers="model.text_model.layers",
    text_key="text_config",
    tower=TowerSpec(
        encoders=("model.vision_model.",),
        connectors=("model.connector.",),
        block=SIGLIP,
        fields={
            **SIGLIP_FIELDS,
            "hidden_size": ModelField("hidden_size", default=1152),
            "n_heads": ModelField("num_attention_heads", default=16),
            "patch": ModelField("patch_size", default=32),
        },
        tensors=SIGLIP_TENSORS,
        connector={"proj": TensorNames("modality_projection.proj", "")},
        image=ModelField("image_token_id"),
    ),
    tensors={
        **LLAMA.tensors,
        "embed": LLAMA.tensors["embed"]._replace(hf="model.text_model.embed_tokens"),
        "final_norm": LLAMA.tensors["final_norm"]._replace(hf="model.text_model.norm"),
    },
    harmless={
        **LLAMA.harmless,
        "model_type": ("llama", "VLlama3"),
        "qk_layer_norms": (False,),
        "use_resampler": (False,),
        "_flash_attn_2_enabled": None,
        "neftune_noise_alpha": None,
        "perceiver_config": None,
        "pixel_shuffle_factor": None,
    },
)
