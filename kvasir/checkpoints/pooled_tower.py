"""The tower of Gemma 4, from its config: images of any shape, each in as many tokens as fit."""

from __future__ import annotations

from msgspec.structs import replace

from kvasir.checkpoints.keys import Keys
from kvasir.checkpoints.qwen_tower import MAX_FOLD, MAX_PATCH, plane_encoder
from kvasir.core.tiles import MAX_TOKENS, TileSpec
from kvasir.models.family import PooledTowerSpec
from kvasir.models.spec import MAX_LAYERS, ModelConfig
from kvasir.models.towers import PooledTower

MOST_POSITIONS = 1 << 16
"""Of columns, and of lines."""
_EPS = 1e-6
_THETA = 100.0
_MOST_TOKENS = 280
_ACT = "gelu_pytorch_tanh"
_MIDDLE = (0.5, 0.5, 0.5)
"""Pixels from 0 to 1 become numbers from -1 to 1."""


def read_pooled_tower(
    spec: PooledTowerSpec, bases: tuple[str, str], config: Keys, processor: Keys, out_size: int
) -> PooledTower:
    """The tower of a model with rows of ``out_size``; ``bases``: before names of tensors of encoder
    and connector. Raises ModelError."""
    vision, text = config.table("vision_config") or config, config.table("text_config") or config
    config.refuse("audio_config")
    vision.refuse("use_clipped_linears", False)
    vision.refuse("attention_bias", False)
    own = text.integer("hidden_size_per_layer_input", 256, least=0)
    if own and text is not config:
        raise text.error("hidden_size_per_layer_input", own, "0 in a model that sees images")
    tile = _tile(spec, vision, processor)
    axis = vision.integer(
        "position_embedding_size", spec.sizes["position_embedding_size"], most=MOST_POSITIONS
    )
    if axis < tile.most * tile.fold:
        wanted = f"at least {tile.most * tile.fold}, the patches of a side of an image"
        raise vision.error("position_embedding_size", axis, wanted)
    encoder, dim = _encoder(spec, vision)
    return PooledTower(
        spec=spec,
        bases=bases,
        encoder=encoder,
        head_dim=dim,
        axis=axis,
        standardizes=vision.flag("standardize", False),
        out_size=out_size,
        tile=tile,
    )


def _tile(spec: PooledTowerSpec, vision: Keys, processor: Keys) -> TileSpec:
    sizes = {"patch_size": MAX_PATCH, "pooling_kernel_size": MAX_FOLD}
    patch, fold = (vision.integer(x, spec.sizes[x], most=most) for x, most in sizes.items())
    for name, own in (("patch_size", patch), ("pooling_kernel_size", fold)):
        if processor.integer(name, spec.sizes[name]) != own:
            raise processor.error(name, processor.raw(name), f"the {own} of vision_config")
    factor = processor.number("rescale_factor", 1 / 255)
    most = processor.integer("max_soft_tokens", _MOST_TOKENS, most=MAX_TOKENS)
    return TileSpec(0, patch, fold, factor, _MIDDLE, _MIDDLE, averages=True, most=most)


def _encoder(spec: PooledTowerSpec, vision: Keys) -> tuple[ModelConfig, int]:
    """And the size of its heads, before they are padded."""
    names = "hidden_size", "num_attention_heads", "head_dim", "intermediate_size"
    hidden, heads, dim, inner = (vision.integer(x, spec.sizes[x]) for x in names)
    if dim % 4:
        raise vision.error("head_dim", dim, "a multiple of 4")
    if vision.integer("num_key_value_heads", spec.sizes["num_attention_heads"]) != heads:
        said = vision.raw("num_key_value_heads")
        raise vision.error("num_key_value_heads", said, f"num_attention_heads = {heads}")
    name = "num_hidden_layers"
    depth = vision.integer(name, spec.sizes[name], most=MAX_LAYERS)
    vision.word("hidden_activation", (_ACT,), _ACT)
    block, eps = replace(spec.block, act="gelu_tanh"), vision.number("rms_norm_eps", _EPS)
    encoder = plane_encoder(block, hidden, heads, dim, inner, depth, _theta(vision), eps)
    share = dim / encoder.layers[0].head_dim
    return replace(encoder, attention_scale=share, head_share=share), dim


def _theta(vision: Keys) -> float:
    """Files call the rope of lines and columns by one name or the other."""
    rope = vision.table("rope_parameters")
    if rope is None:
        return _THETA
    rope.word("rope_type", ("axial", "default"), "axial")
    return rope.number("rope_theta", _THETA, least=1.0)
