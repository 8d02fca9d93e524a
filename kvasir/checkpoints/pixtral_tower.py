"""The tower of Pixtral and Mistral 3, from its config: images of any size, up to a longest side,
and a merger that only some have. It is built as those of Qwen (``models.qwen_programs``)."""

from __future__ import annotations

from msgspec.structs import replace

from kvasir.checkpoints.keys import Keys
from kvasir.checkpoints.qwen_tower import (
    CLIP_MEAN,
    CLIP_STD,
    MAX_FOLD,
    MAX_PATCH,
    THETA,
    channels,
    plane_encoder,
)
from kvasir.core.tiles import CHANNELS, TileSpec
from kvasir.models.family import PixtralTowerSpec
from kvasir.models.spec import MAX_LAYERS, ModelConfig
from kvasir.models.towers import QwenTower

_EPS = 1e-5
_TEXT_EPS = 1e-6
_ACTS = ("gelu", "silu")


def read_pixtral_tower(
    spec: PixtralTowerSpec, bases: tuple[str, str], config: Keys, processor: Keys, out_size: int
) -> QwenTower:
    """The tower of a model with rows of ``out_size``; ``bases``: before names of tensors of encoder
    and merger. Raises ModelError."""
    vision, text = config.table("vision_config") or config, config.table("text_config") or config
    vision.word("model_type", ("pixtral",), "pixtral")
    for name, (wanted, default) in spec.above.items():
        found = config.raw(name)
        if (default if found is None else found) != wanted:
            raise config.error(name, found, repr(wanted))
    encoder = _encoder(spec, vision)
    return QwenTower(
        spec=spec,
        bases=bases,
        encoder=encoder,
        head_dim=encoder.hidden_size // encoder.layers[0].n_heads,
        out_size=out_size,
        tile=_tile(spec, config, vision, processor),
        merger_eps=text.number("rms_norm_eps", _TEXT_EPS),
        merger_bias=config.flag("multimodal_projector_bias", spec.merger_bias),
    )


def _tile(spec: PixtralTowerSpec, config: Keys, vision: Keys, processor: Keys) -> TileSpec:
    patch = vision.integer("patch_size", spec.sizes["patch_size"], most=MAX_PATCH)
    name, default = spec.fold
    fold = config.integer(name, default, most=MAX_FOLD) if name else default
    if vision.integer("num_channels", CHANNELS) != CHANNELS:
        raise vision.error("num_channels", vision.raw("num_channels"), str(CHANNELS))
    return TileSpec(
        0,
        patch,
        fold,
        processor.number("rescale_factor", 1 / 255),
        channels(processor, "image_mean", CLIP_MEAN),
        channels(processor, "image_std", CLIP_STD),
    )


def _encoder(spec: PixtralTowerSpec, vision: Keys) -> ModelConfig:
    sizes = spec.sizes
    hidden, heads, inner = (
        vision.integer(name, sizes[name])
        for name in ("hidden_size", "num_attention_heads", "intermediate_size")
    )
    depth = vision.integer("num_hidden_layers", sizes["num_hidden_layers"], most=MAX_LAYERS)
    if hidden % heads or hidden // heads % 4:
        expected = f"a multiple of 4 x num_attention_heads = {4 * heads}"
        raise vision.error("hidden_size", hidden, expected)
    dim = hidden // heads
    if vision.integer("head_dim", dim) != dim:
        raise vision.error("head_dim", vision.raw("head_dim"), f"hidden_size over heads, {dim}")
    block = replace(spec.block, act=vision.word("hidden_act", _ACTS, spec.block.act))
    return plane_encoder(block, hidden, heads, dim, inner, depth, _theta(vision), _EPS)


def _theta(vision: Keys) -> float:
    """Newer files have a table of it."""
    rope = vision.table("rope_parameters")
    said = vision if rope is None else rope
    return said.number("rope_theta", THETA, least=1.0)
