"""SmolVLM and Idefics 3: a Llama that sees, with a SigLIP tower (``models.tower``)."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA

SMOLVLM = replace(
    LLAMA,
    name="smolvlm",
    architectures=("SmolVLMForConditionalGeneration", "Idefics3ForConditionalGeneration"),
    gguf="",
    hf_layers="model.text_model.layers",
    text_key="text_config",
    tower_tensors=("model.vision_model.", "model.connector."),
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
