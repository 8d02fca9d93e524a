"""Gemma 4 that sees: a tower for images of any shape, whose tokens see each other in layers with a
window. Its sizes with embeddings of layers and clipped matrices run without it (``unseen``)."""

from msgspec.structs import replace

from kvasir.models.families.gemma4 import GEMMA4
from kvasir.models.family import ModelField, PooledTowerSpec
from kvasir.models.spec import BlockSpec

_LAYER = "encoder.layers.{}"
_SIZES = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "n_layers": 30,
    "n_heads": 8,
    "ffn_size": 9216,
    "max_positions": 131072,
}
"""Of files that do not say them."""

GEMMA4_VISION = replace(
    GEMMA4,
    name="gemma4_vision",
    architectures=("Gemma4ForConditionalGeneration",),
    gguf="",
    block=replace(GEMMA4.block, spans=True, near_spans=True),
    text_key="text_config",
    unread_tower=("model.audio_tower.", "model.embed_audio."),
    tower=PooledTowerSpec(
        encoders=("model.vision_tower.", "vision_tower."),
        connectors=("model.embed_vision.", "embed_vision."),
        names={
            "patch": "patch_embedder.input_proj",
            "positions": "patch_embedder.position_embedding_table.",
            "attn_norm": f"{_LAYER}.input_layernorm",
            "attn_post_norm": f"{_LAYER}.post_attention_layernorm",
            "mlp_norm": f"{_LAYER}.pre_feedforward_layernorm",
            "mlp_post_norm": f"{_LAYER}.post_feedforward_layernorm",
            **{x: f"{_LAYER}.self_attn.{x}_proj.linear" for x in "qkvo"},
            **{f"{x}_norm": f"{_LAYER}.self_attn.{x}_norm" for x in "qk"},
            **{x: f"{_LAYER}.mlp.{x}_proj.linear" for x in ("gate", "up", "down")},
            "minus_bias": "std_bias.",
            "scale": "std_scale.",
            "proj": "embedding_projection",
        },
        sizes={
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 16,
            "num_attention_heads": 12,
            "head_dim": 64,
            "patch_size": 16,
            "pooling_kernel_size": 3,
            "position_embedding_size": 10240,
        },
        block=BlockSpec(qk_norm="all", post_norms=True, both_ways=True),
        tokens=(
            ("image_token_id", 258880),
            ("boi_token_id", 255999),
            ("eoi_token_id", 258882),
        ),
    ),
    fields={
        **GEMMA4.fields,
        **{name: GEMMA4.fields[name]._replace(default=n) for name, n in _SIZES.items()},
        "spans": ModelField("use_bidirectional_attention"),
    },
    harmless={k: v for k, v in GEMMA4.harmless.items() if k != "use_bidirectional_attention"},
)
