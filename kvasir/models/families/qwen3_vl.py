"""Qwen3-VL: a Qwen 3 that sees, with M-RoPE, a tower of images of any size (``models.qwen_tower``),
and rows of its early layers added behind the first ones of the language model."""

from msgspec.structs import replace

from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.family import ModelField, QwenTowerSpec
from kvasir.models.spec import RopeAxes

_WINDOWS = ("window", "use_windows", "first_window", "layer_types")

QWEN3_VL = replace(
    QWEN3,
    name="qwen3_vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    gguf="",
    hf_layers="model.language_model.layers",
    text_key="text_config",
    tower=QwenTowerSpec(("model.visual.",), taps=(8, 16, 24)),
    rope_axes=RopeAxes((24, 20, 20), woven=True),
    fields={
        **{name: field for name, field in QWEN3.fields.items() if name not in _WINDOWS},
        "theta": ModelField("rope_theta", "", 5e5),
    },
    tensors={
        **QWEN3.tensors,
        "embed": QWEN3.tensors["embed"]._replace(hf="model.language_model.embed_tokens"),
        "final_norm": QWEN3.tensors["final_norm"]._replace(hf="model.language_model.norm"),
    },
)
