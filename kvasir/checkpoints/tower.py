"""The tower of a model that sees images, from its config: an encoder of patches, and what makes its
rows those of the language model."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from msgspec.structs import replace

from kvasir.checkpoints.fields import Fields
from kvasir.checkpoints.keys import Keys
from kvasir.checkpoints.mmproj import family_of
from kvasir.checkpoints.pixtral_tower import read_pixtral_tower
from kvasir.checkpoints.pooled_tower import read_pooled_tower
from kvasir.checkpoints.qwen_tower import HEAD_STEP, channels, read_qwen_tower
from kvasir.core.errors import ModelError
from kvasir.core.tiles import CHANNELS, TileSpec
from kvasir.models.families import FAMILIES
from kvasir.models.family import (
    AnyTowerSpec,
    Family,
    PixtralTowerSpec,
    PooledTowerSpec,
    QwenTowerSpec,
    TensorNames,
    TowerSpec,
)
from kvasir.models.spec import MAX_LAYERS, NO_ROPE, BlockSpec, LayerSpec, ModelConfig
from kvasir.models.towers import AnyTower, TowerConfig
from kvasir.weights.source import ModelSource

MAX_TILE = 1024
"""Pixels of a side."""
_PREPROCESSOR, _PROCESSOR = "preprocessor_config.json", "processor_config.json"
_ACTS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_NORMS = {"layer_norm": "layer_bias", "rms_norm": "rms"}
_QK_EPS = 1e-6
"""Of norms of queries and keys, whatever the others have."""
_SIZES = {"whole": 224, "shape": 384, "paved": 384}
"""Pixels of a side of a tile, in processors that do not say it."""


def processor_of(source: ModelSource) -> Keys:
    """The file that says how images are read. Raises ModelError without one."""
    found = source.read_json(_PROCESSOR).get("image_processor")
    file = _PROCESSOR if isinstance(found, Mapping) else _PREPROCESSOR
    said = found if isinstance(found, Mapping) else source.read_json(_PREPROCESSOR)
    if not said:
        raise ModelError(
            f"{source.path}: there is no {_PREPROCESSOR}, which says how images are read: "
            "complete the download"
        )
    return Keys(said, f"{source.path}: {file}")


def seeing_family(source: ModelSource) -> Family | None:
    """A family of a model that has a tower, with that tower; None of any other."""
    if (family := family_of(source)) is not None:
        return family
    said = source.config.get("architectures") if source.kind == "hf" else None
    names = {str(name) for name in said} if isinstance(said, list) else set()
    found = (family for family in FAMILIES if family.tower and names & {*family.architectures})
    return next(found, None)


def tower_spec(source: ModelSource) -> AnyTowerSpec:
    """Of a model that sees. Raises ModelError of any other."""
    return _family(source)[1]


def _family(source: ModelSource) -> tuple[Family, AnyTowerSpec]:
    family = seeing_family(source)
    if family is None or family.tower is None:
        raise ModelError(f"{source.path}: the model has no tower of images")
    return family, family.tower


def read_tower(source: ModelSource, out_size: int) -> AnyTower:
    """The tower of a folder whose language model has rows of ``out_size``. Raises ModelError."""
    keys = Keys(source.config, f"{source.path}: config.json")
    vision, processor = keys.table("vision_config"), processor_of(source)
    if vision is None:
        raise keys.error("vision_config", None, "the tower of images")
    family, spec = _family(source)
    if not isinstance(spec, TowerSpec):
        return _read_spelled(spec, source, keys, processor, out_size)
    for name, values in spec.above.items():
        keys.refuse(name, *values)
    fields = Fields(replace(family, fields=spec.fields, harmless=spec.harmless), vision, "hf")
    fields.refuse_others()
    patch, size = _side(fields, "patch", 1), tile_size(processor, spec)
    image, fold = _side(fields, "image", patch), _fold(keys, spec, size // patch)
    _check_tile(processor, spec, size, patch, fold, image)
    trained = image // patch
    tile = TileSpec(
        size // patch * patch,
        patch,
        fold,
        processor.number("rescale_factor", 1 / 255),
        channels(processor, "image_mean", spec.mean),
        channels(processor, "image_std", spec.std),
        averages=spec.cuts == "whole",
        n_first=int("first" in spec.tensors),
        newline=bool(spec.newlines),
    )
    if vision.integer("num_channels", CHANNELS) != CHANNELS:
        raise vision.error("num_channels", vision.raw("num_channels"), str(CHANNELS))
    encoder, dim = _encoder(fields, spec, trained**2 + tile.n_first)
    newline = next((x for x in spec.newlines if x in source.tensors), "".join(spec.newlines[:1]))
    return TowerConfig(
        spec=spec,
        bases=_bases(spec, source),
        encoder=encoder,
        head_dim=dim,
        trained=trained,
        out_size=out_size,
        tile=tile,
        newline=newline,
    )


def _read_spelled(
    spec: QwenTowerSpec | PooledTowerSpec,
    source: ModelSource,
    config: Keys,
    processor: Keys,
    out_size: int,
) -> AnyTower:
    """Names of tensors of encoder and connector begin as the file spells them."""
    patch = f"{spec.names['patch']}.weight"
    i = next((i for i, base in enumerate(spec.encoders) if base + patch in source.tensors), 0)
    if isinstance(spec, PooledTowerSpec):
        bases = spec.encoders[i], spec.connectors[i]
        return read_pooled_tower(spec, bases, config, processor, out_size)
    bases = spec.encoders[i], (spec.connectors or spec.encoders)[i]
    if isinstance(spec, PixtralTowerSpec):
        return read_pixtral_tower(spec, bases, config, processor, out_size)
    vision = config.table("vision_config") or config
    return read_qwen_tower(spec, bases, vision, processor, out_size)


def _encoder(fields: Fields, spec: TowerSpec, n_positions: int) -> tuple[ModelConfig, int]:
    """And the size of its heads, before they are padded."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("n_heads")
    if hidden % heads:
        raise fields.error("hidden_size", hidden, f"a multiple of num_attention_heads = {heads}")
    dim, inner = hidden // heads, fields.integer("ffn_size")
    layer = LayerSpec(heads, heads, -(-dim // HEAD_STEP) * HEAD_STEP, inner, rope=NO_ROPE)
    encoder = ModelConfig(
        family="tower",
        kind="hf",
        block=_block(fields, spec),
        vocab_size=0,
        hidden_size=hidden,
        layers=(layer,) * fields.integer("n_layers", most=MAX_LAYERS),
        max_positions=n_positions,
        norm_eps=fields.number("norm_eps"),
        attention_scale=float(dim**-0.5),
        ropes={},
    )
    return encoder, dim


def _block(fields: Fields, spec: TowerSpec) -> BlockSpec:
    block = replace(spec.block, act=_ACTS[fields.word("act", _ACTS)])
    if fields.has("qkv_bias"):
        block = replace(block, qkv_bias=fields.flag("qkv_bias"))
    if fields.has("norm_kind"):
        block = replace(block, norm=_NORMS[fields.word("norm_kind", _NORMS)])
    if not (fields.has("qk_norm") and fields.flag("qk_norm")):
        return block
    size = fields.integer("hidden_size") // fields.integer("n_heads")
    if block.norm != "rms" or fields.number("norm_eps") != _QK_EPS or size % HEAD_STEP:
        wanted = f"false, or rms_norm with an epsilon of {_QK_EPS:g}, and heads of {HEAD_STEP} x n"
        raise fields.error("qk_norm", True, wanted)
    return replace(block, qk_norm="width")


def tensor_of(names: TensorNames, base: str, end: str) -> str:
    """To a name that ends in a point nothing is added."""
    name = base + names.hf
    return name.removesuffix(".") if name.endswith(".") else f"{name}.{end}"


def _bases(spec: TowerSpec, source: ModelSource) -> tuple[str, str]:
    """As the file spells them."""
    found = [
        next((x for x in bases if tensor_of(names, x, "weight") in source.tensors), bases[0])
        for bases, names in (
            (spec.encoders, spec.tensors["patch"]),
            (spec.connectors, spec.connector["proj"]),
        )
    ]
    return found[0], found[1]


def _check_tile(
    processor: Keys, spec: TowerSpec, size: int, patch: int, fold: int, image: int
) -> None:
    """Of positions of a side for so many pixels; others are between them in a grid alone. What is
    paved has pixels at the right and below that no patch reads."""
    is_paved = spec.cuts == "paved"
    wanted = image if is_paved else image // patch * patch
    if spec.cuts != "grid" and (size if is_paved else size // patch * patch) != wanted:
        raise processor.error("size", size, f"the {wanted} pixels of vision_config")
    if (size % patch and not is_paved) or (size // patch) % fold:
        name, why = "max_image_size" if spec.cuts == "grid" else "size", f"patch_size {patch}"
        raise processor.error(name, size, f"tiles of a multiple of {why} x scale_factor {fold}")


def tile_size(processor: Keys, spec: TowerSpec) -> int:
    """Pixels of a side."""
    if spec.cuts == "grid":
        return edge(processor, "max_image_size", 364, MAX_TILE)
    table = processor.table("size")
    if table is None:
        return _SIZES[spec.cuts]
    height, width = (table.integer(x, most=MAX_TILE) for x in ("height", "width"))
    if height != width:
        raise table.error("width", width, f"the height, {height}")
    return height


def _side(fields: Fields, name: str, least: int) -> int:
    """Pixels of a side of a square, which some files say twice."""
    key = fields.key(name)
    if not isinstance(fields.keys.raw(key), list):
        return fields.integer(name, least, MAX_TILE)
    height, width = fields.keys.integers(key, 2, least, MAX_TILE)
    if height != width:
        raise fields.error(name, [height, width], "a square")
    return height


def _fold(keys: Keys, spec: TowerSpec, side: int) -> int:
    """Patches of a side of what becomes one row, of a tile with so many."""
    if spec.cuts == "paved":
        return 1
    if spec.cuts == "grid":
        return keys.integer("scale_factor", 2, most=64)
    if spec.cuts == "shape":
        ratio = keys.number("downsample_ratio", 0.5, least=1 / 64, most=1.0)
        if 1 / round(1 / ratio) != ratio:
            raise keys.error("downsample_ratio", ratio, "one over a whole number")
        return round(1 / ratio)
    n = keys.integer("mm_tokens_per_image", 256)
    rows = isqrt(n)
    if rows**2 != n or not side or side % rows:
        raise keys.error("mm_tokens_per_image", n, f"the square of a divisor of {side} patches")
    return side // rows


def edge(keys: Keys, name: str, default: int, most: int) -> int:
    table = keys.table(name)
    return default if table is None else table.integer("longest_edge", default, most=most)
