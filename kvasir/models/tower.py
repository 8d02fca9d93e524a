"""The tower of a model that sees images, from its config: SigLIP, and what makes its rows those of
the language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt

import numpy as np
from msgspec.structs import replace

from kvasir.core.errors import ModelError
from kvasir.core.tiles import CHANNELS, MAX_SIDE, Preparing, Slicing, TileSpec
from kvasir.ir.builder import Builder
from kvasir.ir.bundle import PATCHES, Tower
from kvasir.ir.program import Program, Transform, Weight
from kvasir.ir.tiles import plain_positions, positions
from kvasir.models.decoder import record_blocks
from kvasir.models.families import FAMILIES
from kvasir.models.family import Family, QwenTowerSpec, TensorNames, TowerSpec
from kvasir.models.fields import Fields
from kvasir.models.keys import Keys
from kvasir.models.parts import record_linear, record_norm
from kvasir.models.qwen_tower import QwenTower, read_qwen_tower, read_resizing
from kvasir.models.spec import MAX_LAYERS, NO_ROPE, BlockSpec, LayerSpec, ModelConfig
from kvasir.weights.source import ModelSource

MAX_TILE = 1024
"""Pixels of a side."""
HEAD_STEP = 16
"""Heads are padded to a multiple of this many numbers, which all executors take."""
_PREPROCESSOR, _PROCESSOR = "preprocessor_config.json", "processor_config.json"
_SOFT_NORM, _PROJ = "tower.soft_norm", "tower.proj"
_TOP: Mapping[str, str] = {
    "tower.patch": "embeddings.patch_embedding",
    "tower.positions": "embeddings.position_embedding",
    "tower.norm": "post_layernorm",
}
"""Of the encoder."""
_NAMES: Mapping[str, str] = {
    "attn_norm": "layer_norm1",
    "mlp_norm": "layer_norm2",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.out_proj",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
"""Of a layer."""
_FIXED: Mapping[str, object] = {
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_resize": True,
    "do_pan_and_scan": False,
}
"""Fields of the processor that have one value here."""
_N_ROWS = ("image_seq_len", "image_seq_length")
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

    def has(self, tensor: str) -> bool:
        """Whether a tensor is of the tower; what pools all of an image is of none."""
        return tensor.startswith(self.bases) and not tensor.startswith(f"{self.bases[0]}head.")


AnyTower = TowerConfig | QwenTower


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
    """The family of a model that has a tower; None of any other."""
    said = source.config.get("architectures") if source.kind == "hf" else None
    names = {str(name) for name in said} if isinstance(said, list) else set()
    found = (family for family in FAMILIES if family.tower and names & {*family.architectures})
    return next(found, None)


def tower_spec(source: ModelSource) -> TowerSpec:
    """Of a model that sees. Raises ModelError of any other."""
    return _family(source)[1]


def _qwen_spec(source: ModelSource) -> QwenTowerSpec | None:
    """Of a model that sees images of any size."""
    family = seeing_family(source)
    spec = None if family is None else family.tower
    return spec if isinstance(spec, QwenTowerSpec) else None


def n_tokens_of(source: ModelSource) -> int:
    """Tokens that stand for a tile, at most. Raises ModelError where two files disagree."""
    n = read_tower(source, 0).tile.n_tokens
    if _qwen_spec(source) is not None:
        return n
    said = Keys(source.read_json(_PROCESSOR), f"{source.path}: {_PROCESSOR}")
    for name in _N_ROWS:
        if said.integer(name, n) != n:
            raise said.error(name, said.raw(name), f"the {n} rows of a tile")
    return n


def slicing_of(source: ModelSource) -> Preparing:
    """Raises ModelError on a processor that reads images in another way."""
    if _qwen_spec(source) is not None:
        return read_resizing(processor_of(source))
    keys, spec = processor_of(source), tower_spec(source)
    for name, value in _FIXED.items():
        keys.refuse(name, value)
    tile = _tile_size(keys, spec)
    if spec.is_whole:
        return Slicing(tile, 0, False, keys.integer("resample", 2, least=0, most=5))
    return Slicing(
        tile,
        _edge(keys, "size", 4 * 364, MAX_SIDE),
        keys.flag("do_image_splitting", True),
        keys.integer("resample", 1, least=0, most=5),
    )


def read_tower(source: ModelSource, out_size: int) -> AnyTower:
    """The tower of a folder whose language model has rows of ``out_size``. Raises ModelError."""
    keys = Keys(source.config, f"{source.path}: config.json")
    vision, processor = keys.table("vision_config"), processor_of(source)
    if vision is None:
        raise keys.error("vision_config", None, "the tower of images")
    if (qwen := _qwen_spec(source)) is not None:
        return read_qwen_tower(qwen, vision, processor, out_size)
    family, spec = _family(source)
    fields = Fields(replace(family, fields=spec.fields), vision, "hf")
    hidden, heads = fields.integer("hidden_size"), fields.integer("n_heads")
    if hidden % heads:
        raise fields.error("hidden_size", hidden, f"a multiple of num_attention_heads = {heads}")
    patch = fields.integer("patch", most=MAX_TILE)
    trained = fields.integer("image", least=patch, most=MAX_TILE) // patch
    size = _tile_size(processor, spec)
    fold = _fold(keys, spec, size // patch)
    if size % patch or (size // patch) % fold or (spec.is_whole and size // patch != trained):
        wanted = f"tiles of a multiple of patch_size {patch} x scale_factor {fold}"
        whole = f"the {trained * patch} pixels of vision_config"
        name, wanted = ("size", whole) if spec.is_whole else ("max_image_size", wanted)
        raise processor.error(name, size, wanted)
    tile = TileSpec(
        size,
        patch,
        fold,
        processor.number("rescale_factor", 1 / 255),
        _channels(processor, "image_mean"),
        _channels(processor, "image_std"),
        averages=spec.is_whole,
    )
    if vision.integer("num_channels", CHANNELS) != CHANNELS:
        raise vision.error("num_channels", vision.raw("num_channels"), str(CHANNELS))
    encoder, dim = _encoder_config(fields, vision, trained), hidden // heads
    return TowerConfig(spec, _bases(spec, source), encoder, dim, trained, out_size, tile)


def _encoder_config(fields: Fields, vision: Keys, trained: int) -> ModelConfig:
    hidden, heads = fields.integer("hidden_size"), fields.integer("n_heads")
    dim, inner = hidden // heads, fields.integer("ffn_size")
    padded = -(-dim // HEAD_STEP) * HEAD_STEP
    vision.word("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    layer = LayerSpec(heads, heads, padded, inner, rope=NO_ROPE)
    return ModelConfig(
        family="siglip",
        kind="hf",
        block=_BLOCK,
        vocab_size=0,
        hidden_size=hidden,
        layers=(layer,) * fields.integer("n_layers", most=MAX_LAYERS),
        max_positions=trained**2,
        norm_eps=vision.number("layer_norm_eps", 1e-6),
        attention_scale=float(dim**-0.5),
        ropes={},
    )


_BLOCK = BlockSpec(
    act="gelu_tanh",
    gated=False,
    norm="layer_bias",
    both_ways=True,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
)


def _family(source: ModelSource) -> tuple[Family, TowerSpec]:
    family = seeing_family(source)
    if family is None or not isinstance(family.tower, TowerSpec):
        raise ModelError(f"{source.path}: the model has no tower of images")
    return family, family.tower


def _bases(spec: TowerSpec, source: ModelSource) -> tuple[str, str]:
    """As the file spells them."""
    patch = f"{_TOP['tower.patch']}.weight"
    names = tuple(_tensor(spec.connector[_PROJ], base, "weight") for base in spec.connectors)
    encoders = (x for x in spec.encoders if x + patch in source.tensors)
    both = zip(spec.connectors, names, strict=True)
    connectors = (base for base, name in both if name in source.tensors)
    return next(encoders, spec.encoders[0]), next(connectors, spec.connectors[0])


def _tile_size(processor: Keys, spec: TowerSpec) -> int:
    """Pixels of a side."""
    if not spec.is_whole:
        return _edge(processor, "max_image_size", 364, MAX_TILE)
    table = processor.table("size")
    if table is None:
        return 224
    height, width = (table.integer(x, most=MAX_TILE) for x in ("height", "width"))
    if height != width:
        raise table.error("width", width, f"the height, {height}")
    return height


def _fold(keys: Keys, spec: TowerSpec, side: int) -> int:
    """Patches of a side of what becomes one row, of a tile with so many."""
    if not spec.is_whole:
        return keys.integer("scale_factor", 2, most=64)
    n = keys.integer("mm_tokens_per_image", 256)
    rows = isqrt(n)
    if rows**2 != n or not side or side % rows:
        raise keys.error("mm_tokens_per_image", n, f"the square of a divisor of {side} patches")
    return side // rows


def _edge(keys: Keys, name: str, default: int, most: int) -> int:
    table = keys.table(name)
    return default if table is None else table.integer("longest_edge", default, most=most)


def _channels(keys: Keys, name: str) -> tuple[float, float, float]:
    if not keys.has(name):
        return 0.5, 0.5, 0.5
    red, green, blue = keys.numbers(name, CHANNELS)
    return red, green, blue


def build_tower(config: AnyTower) -> Tower:
    """The raw programs."""
    if isinstance(config, QwenTower):
        return config.build()
    tile = config.tile
    at = plain_positions(tile) if config.spec.is_whole else positions(tile, config.trained)
    return Tower(_encoder(config), _connector(config), tile, at)


def _encoder(config: TowerConfig) -> Program:
    builder, encoder, tile = Builder("tower", _weight_of(config)), config.encoder, config.tile
    patches = builder.input(PATCHES, ("T", tile.n_columns), "f32")
    at = builder.input("positions", ("T",), "i32")
    builder.input("ends", ("T",), "i32")
    builder.constant(NO_ROPE, np.zeros((encoder.max_positions, 0), np.float32))
    hidden = encoder.hidden_size
    x = record_linear(builder, patches, "tower.patch", "tower.x.patch", hidden, bias=True)
    table = builder.weight("tower.positions", (encoder.max_positions, hidden))
    position = builder.op("embed", (at,), "tower.x.positions", (table,), scale=1.0)
    x = builder.op("add", (x, position), "tower.x")
    x = record_blocks(builder, encoder, x, prefix="tower.")
    x = record_norm(builder, encoder, x, "tower.norm", "tower.rows")
    return builder.build((x,))


def _connector(config: TowerConfig) -> Program:
    builder = Builder("connector", _weight_of(config))
    columns = config.encoder.hidden_size * config.tile.n_joined
    x = builder.input(PATCHES, ("T", columns), "f32")
    if _SOFT_NORM in config.spec.connector:
        weight, eps = builder.weight(_SOFT_NORM, (columns,)), config.encoder.norm_eps
        x = builder.op("norm", (x,), "tower.soft", (weight,), eps=eps, to="f32", block=0)
    x = record_linear(builder, x, _PROJ, "tower.media", config.out_size)
    return builder.build((x,))


def _weight_of(config: TowerConfig) -> Callable[[str, tuple[int, ...]], Weight]:
    encoder, connector = config.bases

    def weight(name: str, shape: tuple[int, ...]) -> Weight:
        matrix = name.removesuffix(".bias")
        end = "weight" if matrix == name else "bias"
        names = config.spec.connector.get(matrix)
        if names is not None:
            steps = tuple(Transform(step, ()) for step in names.hf_step.split())
            return Weight(name, shape, (_tensor(names, connector, end),), steps)
        if matrix in _TOP:
            tensor = _TOP[matrix]
        else:
            _, _, layer, part = matrix.split(".")
            tensor = f"encoder.layers.{layer}.{_NAMES[part]}"
        return Weight(name, shape, (f"{encoder}{tensor}.{end}",), _steps(config, name))

    return weight


def _tensor(names: TensorNames, base: str, end: str) -> str:
    """To a name that ends in a point nothing is added."""
    name = base + names.hf
    return name.removesuffix(".") if name.endswith(".") else f"{name}.{end}"


def _steps(config: TowerConfig, name: str) -> tuple[Transform, ...]:
    """From a tensor to the weight."""
    if name == "tower.patch":
        return (Transform("patch_rows", (config.tile.patch,)),)
    layer, part = config.encoder.layers[0], name.partition(".layers.")[2].partition(".")[2]
    step = _PADDED.get(part) if layer.head_dim != config.head_dim else None
    sizes = layer.n_heads, config.head_dim, layer.head_dim
    return () if step is None else (Transform(step, sizes),)


_PADDED: Mapping[str, str] = {
    **dict.fromkeys(("q", "k", "v", "q.bias", "k.bias", "v.bias"), "padded_heads"),
    "o": "padded_columns",
}
"""Parts of a layer that have heads, and the step that pads them."""
