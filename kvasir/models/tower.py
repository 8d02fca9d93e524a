"""The tower of a model that sees images, from its config: an encoder of patches, and what makes its
rows those of the language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt

from msgspec.structs import replace

from kvasir.core.errors import ModelError
from kvasir.core.tiles import CHANNELS, MAX_SIDE, MAX_TILES, Preparing, Slicing, TileSpec
from kvasir.models.families import FAMILIES
from kvasir.models.family import (
    Family,
    PixtralTowerSpec,
    PooledTowerSpec,
    QwenTowerSpec,
    TensorNames,
    TowerSpec,
)
from kvasir.models.fields import Fields
from kvasir.models.keys import Keys
from kvasir.models.mmproj import family_of
from kvasir.models.paving import read_paving
from kvasir.models.pixtral_tower import read_bounding, read_pixtral_tower
from kvasir.models.pooled_tower import PooledTower, read_pooled_tower, read_scaling
from kvasir.models.qwen_tower import QwenTower, channels, read_qwen_tower, read_resizing
from kvasir.models.spec import MAX_LAYERS, NO_ROPE, BlockSpec, LayerSpec, ModelConfig
from kvasir.weights.source import ModelSource

MAX_TILE = 1024
"""Pixels of a side."""
HEAD_STEP = 16
"""Heads are padded to a multiple of this many numbers, which all executors take."""
_PREPROCESSOR, _PROCESSOR = "preprocessor_config.json", "processor_config.json"
_ACTS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_NORMS = {"layer_norm": "layer_bias", "rms_norm": "rms"}
_QK_EPS = 1e-6
"""Of norms of queries and keys, whatever the others have."""
_SIZES = {"whole": 224, "shape": 384, "paved": 384}
"""Pixels of a side of a tile, in processors that do not say it."""
_FILTERS = {"grid": 1, "whole": 2, "shape": 3, "paved": 3}
"""Pillow's numbers of filters, of these."""
_FIXED: Mapping[str, object] = {
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_resize": True,
    "do_pan_and_scan": False,
}
"""Fields of the processor that have one value here."""
_N_ROWS = ("image_seq_len", "image_seq_length", "num_image_tokens")
"""Names that processors have for the rows of a tile."""


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """``encoder`` is a model without vocabulary, whose tokens are patches."""

    spec: TowerSpec
    bases: tuple[str, str]
    """Of names of tensors of encoder and connector in this file."""
    encoder: ModelConfig
    head_dim: int
    """Of the file; the encoder's heads may be padded."""
    trained: int
    """Positions of a side of the table."""
    out_size: int
    """Of the rows that stand in place of embeddings."""
    tile: TileSpec
    newline: str = ""
    """The tensor of the row behind each line, if there is one."""

    def has(self, tensor: str) -> bool:
        """Whether a tensor is of the tower; what pools all of an image is of none."""
        unused = tuple(self.bases[0] + begin for begin in self.spec.unused)
        return (tensor.startswith(self.bases) and not tensor.startswith(unused)) or (
            tensor == self.newline
        )


AnyTower = TowerConfig | QwenTower | PooledTower


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


def tower_spec(source: ModelSource) -> TowerSpec:
    """Of a model that sees. Raises ModelError of any other."""
    return _family(source)[1]


def _pooled_spec(source: ModelSource) -> PooledTowerSpec | None:
    """Of a model that sees images of any shape, in so many tokens."""
    family = seeing_family(source)
    spec = None if family is None else family.tower
    return spec if isinstance(spec, PooledTowerSpec) else None


def _pooled_bases(spec: PooledTowerSpec, source: ModelSource) -> tuple[str, str]:
    """Before names of tensors of encoder and connector, as the file spells them."""
    patch = f"{spec.names['patch']}.weight"
    found = [i for i, base in enumerate(spec.encoders) if base + patch in source.tensors]
    i = found[0] if found else 0
    return spec.encoders[i], spec.connectors[i]


def _qwen_spec(source: ModelSource) -> QwenTowerSpec | None:
    """Of a model that sees images of any size."""
    family = seeing_family(source)
    spec = None if family is None else family.tower
    return spec if isinstance(spec, QwenTowerSpec) else None


def _qwen_bases(spec: QwenTowerSpec, source: ModelSource) -> tuple[str, str]:
    """Before names of tensors of encoder and merger, as the file spells them."""
    patch = f"{spec.names['patch']}.weight"
    found = [i for i, base in enumerate(spec.encoders) if base + patch in source.tensors]
    i = found[0] if found else 0
    return spec.encoders[i], (spec.mergers or spec.encoders)[i]


def n_tokens_of(source: ModelSource) -> int:
    """Tokens that stand for a tile, at most. Raises ModelError where two files disagree."""
    n = read_tower(source, 0).tile.n_tokens
    if _qwen_spec(source) is not None or _pooled_spec(source) is not None:
        return n
    said = Keys(source.read_json(_PROCESSOR), f"{source.path}: {_PROCESSOR}")
    for name in _N_ROWS:
        if said.integer(name, n) != n:
            raise said.error(name, said.raw(name), f"the {n} rows of a tile")
    return n


def slicing_of(source: ModelSource) -> Preparing:
    """Raises ModelError on a processor that reads images in another way."""
    if _pooled_spec(source) is not None:
        return read_scaling(processor_of(source), read_tower(source, 0).tile)
    if (qwen := _qwen_spec(source)) is not None:
        keys = processor_of(source)
        if not isinstance(qwen, PixtralTowerSpec):
            return read_resizing(keys)
        return read_bounding(keys, _merged_unit(source))
    keys, spec = processor_of(source), tower_spec(source)
    for name, value in _FIXED.items():
        keys.refuse(name, value)
    tile = _tile_size(keys, spec)
    resample = keys.integer("resample", _FILTERS[spec.cuts], least=0, most=5)
    if spec.cuts == "paved":
        config = Keys(source.config, f"{source.path}: config.json")
        seen = read_tower(source, 0).tile
        return read_paving(config, keys, (tile, seen.size, seen.side), resample)
    if spec.cuts == "whole":
        return Slicing(tile, 0, False, resample)
    if spec.cuts == "shape":
        least = keys.integer("min_patches", 1, most=MAX_TILES)
        most = keys.integer("max_patches", 12, least, MAX_TILES)
        return Slicing(tile, 0, most > 1, resample, least, most)
    longest = _edge(keys, "size", 4 * 364, MAX_SIDE)
    return Slicing(tile, longest, keys.flag("do_image_splitting", True), resample)


def _merged_unit(source: ModelSource) -> int:
    """Pixels of a side of a row, as the processor says them, too. Raises ModelError."""
    tile = read_tower(source, 0).tile
    said = Keys(source.read_json(_PROCESSOR), f"{source.path}: {_PROCESSOR}")
    for name, default, own in (
        ("patch_size", 16, tile.patch),
        ("spatial_merge_size", 1, tile.fold),
    ):
        if said.integer(name, default) != own:
            raise said.error(name, said.raw(name), f"the {own} of config.json")
    return tile.unit


def read_tower(source: ModelSource, out_size: int) -> AnyTower:
    """The tower of a folder whose language model has rows of ``out_size``. Raises ModelError."""
    keys = Keys(source.config, f"{source.path}: config.json")
    vision, processor = keys.table("vision_config"), processor_of(source)
    if vision is None:
        raise keys.error("vision_config", None, "the tower of images")
    if (pooled := _pooled_spec(source)) is not None:
        bases = _pooled_bases(pooled, source)
        return read_pooled_tower(pooled, bases, keys, processor, out_size)
    if (qwen := _qwen_spec(source)) is not None:
        bases = _qwen_bases(qwen, source)
        if isinstance(qwen, PixtralTowerSpec):
            return read_pixtral_tower(qwen, bases, keys, processor, out_size)
        return read_qwen_tower(qwen, bases, vision, processor, out_size)
    family, spec = _family(source)
    for name, values in spec.above.items():
        keys.refuse(name, *values)
    fields = Fields(replace(family, fields=spec.fields, harmless=spec.harmless), vision, "hf")
    fields.refuse_others()
    patch, size = _side(fields, "patch", 1), _tile_size(processor, spec)
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
    return TowerConfig(spec, _bases(spec, source), encoder, dim, trained, out_size, tile, newline)


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


def _family(source: ModelSource) -> tuple[Family, TowerSpec]:
    family = seeing_family(source)
    if family is None or not isinstance(family.tower, TowerSpec):
        raise ModelError(f"{source.path}: the model has no tower of images")
    return family, family.tower


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


def _tile_size(processor: Keys, spec: TowerSpec) -> int:
    """Pixels of a side."""
    if spec.cuts == "grid":
        return _edge(processor, "max_image_size", 364, MAX_TILE)
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


def _edge(keys: Keys, name: str, default: int, most: int) -> int:
    table = keys.table(name)
    return default if table is None else table.integer("longest_edge", default, most=most)
