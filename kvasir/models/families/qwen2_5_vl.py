"""Qwen2.5-VL: a Qwen 2 that sees, with M-RoPE, and a tower of images of any size, most of whose
layers see windows alone (``checkpoints.qwen_tower``). Released folders have the fields of the
language model beside those of the tower."""

from msgspec.structs import replace

from kvasir.models.families.qwen2 import QWEN2
from kvasir.models.family import ModelField, QwenTowerSpec
from kvasir.models.spec import BlockSpec, RopeAxes

_LAYER = "blocks.{}"

QWEN2_5_VL = replace(
    QWEN2,
    name="qwen2_5_vl",
    architectures=("Qwen2_5_VLForConditionalGeneration",),
    gguf="qwen2vl",
    text_key="text_config",
    text_beside=True,
    tower=QwenTowerSpec(
        encoders=("model.visual.", "visual."),
        names={
            "patch": "patch_embed.proj",
            "attn_norm": f"{_LAYER}.norm1",
            "mlp_norm": f"{_LAYER}.norm2",
            **dict.fromkeys("qkv", f"{_LAYER}.attn.qkv"),
            "o": f"{_LAYER}.attn.proj",
            "gate": f"{_LAYER}.mlp.gate_proj",
            "up": f"{_LAYER}.mlp.up_proj",
            "down": f"{_LAYER}.mlp.down_proj",
            "norm": "merger.ln_q",
            "merger.up": "merger.mlp.0",
            "merger.down": "merger.mlp.2",
        },
        sizes={
            "depth": 32,
            "hidden_size": 3584,
            "intermediate_size": 3420,
            "num_heads": 16,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 3584,
            "window_size": 112,
        },
        block=BlockSpec(both_ways=True, qkv_bias=True, o_bias=True, mlp_bias=True),
        patch_bias=False,
        full=(7, 15, 23, 31),
    ),
    rope_axes=RopeAxes((16, 24, 24)),
    fields={
        **QWEN2.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 8, 0),
        "first_window": ModelField("max_window_layers", "", 80, 0),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "theta": ModelField("rope_theta", "rope.freq_base", 1e6, 1e4),
    },
    harmless={
        **QWEN2.harmless,
        **dict.fromkeys(
            (
                *("image_token_id", "video_token_id", "vision_start_token_id"),
                *("vision_end_token_id", "vision_token_id", "vision_config"),
            )
        ),
    },
)
