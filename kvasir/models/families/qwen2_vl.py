"""Qwen2-VL: the language model of Qwen2.5-VL, and an older tower, all of whose layers see the whole
image; what ``vision_config`` calls hidden_size is the language model's."""

from msgspec.structs import replace

from kvasir.models.families.qwen2_5_vl import QWEN2_5_VL
from kvasir.models.family import QwenTowerSpec
from kvasir.models.spec import BlockSpec

_LAYER = "blocks.{}"

QWEN2_VL = replace(
    QWEN2_5_VL,
    name="qwen2_vl",
    architectures=("Qwen2VLForConditionalGeneration",),
    gguf="",
    tower=QwenTowerSpec(
        encoders=("model.visual.", "visual."),
        names={
            "patch": "patch_embed.proj",
            "attn_norm": f"{_LAYER}.norm1",
            "mlp_norm": f"{_LAYER}.norm2",
            **dict.fromkeys("qkv", f"{_LAYER}.attn.qkv"),
            "o": f"{_LAYER}.attn.proj",
            "up": f"{_LAYER}.mlp.fc1",
            "down": f"{_LAYER}.mlp.fc2",
            "norm": "merger.ln_q",
            "merger.up": "merger.mlp.0",
            "merger.down": "merger.mlp.2",
        },
        keys={"hidden_size": "embed_dim", "out_hidden_size": "hidden_size"},
        sizes={
            "depth": 32,
            "hidden_size": 1280,
            "mlp_ratio": 4,
            "num_heads": 16,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 3584,
        },
        block=BlockSpec(
            act="quick_gelu",
            gated=False,
            norm="layer_bias",
            both_ways=True,
            qkv_bias=True,
            o_bias=True,
            mlp_bias=True,
        ),
        patch_bias=False,
    ),
)
