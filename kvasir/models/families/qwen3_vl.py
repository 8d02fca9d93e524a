"""Qwen3-VL: a Qwen 3 that sees, with M-RoPE, a tower of images of any size
(``checkpoints.qwen_tower``), and rows of its early layers added behind the first ones of the
language model."""

from msgspec.structs import replace

from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.family import ModelField, QwenTowerSpec
from kvasir.models.spec import BlockSpec, RopeAxes

_WINDOWS = ("window", "use_windows", "first_window", "layer_types")
_LAYER = "blocks.{}"
_DEEP = "deepstack_merger_list.{}"

QWEN3_TOWER = QwenTowerSpec(
    encoders=("model.visual.",),
    names={
        "patch": "patch_embed.proj",
        "positions": "pos_embed",
        "attn_norm": f"{_LAYER}.norm1",
        "mlp_norm": f"{_LAYER}.norm2",
        **dict.fromkeys("qkv", f"{_LAYER}.attn.qkv"),
        "o": f"{_LAYER}.attn.proj",
        "up": f"{_LAYER}.mlp.linear_fc1",
        "down": f"{_LAYER}.mlp.linear_fc2",
        "norm": "merger.norm",
        "merger.up": "merger.linear_fc1",
        "merger.down": "merger.linear_fc2",
        "deep.norm": f"{_DEEP}.norm",
        "deep.up": f"{_DEEP}.linear_fc1",
        "deep.down": f"{_DEEP}.linear_fc2",
    },
    sizes={
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 3584,
        "num_position_embeddings": 2304,
    },
    block=BlockSpec(
        act="gelu_tanh",
        gated=False,
        norm="layer_bias",
        both_ways=True,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
    ),
    taps=(8, 16, 24),
)

QWEN3_VL = replace(
    QWEN3,
    name="qwen3_vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    gguf="qwen3vl",
    hf_layers="model.language_model.layers",
    text_key="text_config",
    tower=QWEN3_TOWER,
    rope_axes=RopeAxes((24, 20, 20), woven=True),
    fields={
        **{name: field for name, field in QWEN3.fields.items() if name not in _WINDOWS},
        "theta": ModelField("rope_theta", "rope.freq_base", 5e5, 1e4),
    },
    harmless={**QWEN3.harmless, "n_deepstack_layers": None},
    tensors={
        **QWEN3.tensors,
        "embed": QWEN3.tensors["embed"]._replace(hf="model.language_model.embed_tokens"),
        "final_norm": QWEN3.tensors["final_norm"]._replace(hf="model.language_model.norm"),
    },
)
