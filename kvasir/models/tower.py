"""The tower of a model that sees images, from its config: SigLIP, and Idefics 3's connector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kvasir.core.errors import ModelError
from kvasir.core.tiles import CHANNELS, MAX_SIDE, Slicing, TileSpec
from kvasir.ir.builder import Builder
from kvasir.ir.bundle import PATCHES, Tower
from kvasir.ir.program import Program, Transform, Weight
from kvasir.ir.tiles import positions
from kvasir.models.decoder import record_blocks
from kvasir.models.families import FAMILIES
from kvasir.models.keys import Keys
from kvasir.models.parts import record_linear, record_norm
from kvasir.models.spec import MAX_LAYERS, NO_ROPE, BlockSpec, LayerSpec, ModelConfig
from kvasir.weights.source import ModelSource

MAX_TILE = 1024
"""Pixels of a side."""
HEAD_STEP = 16
"""Heads are padded to a multiple of this many numbers, which all executors take."""
_PREPROCESSOR, _PROCESSOR = "preprocessor_config.json", "processor_config.json"
_ENCODER = "model.vision_model."
_CONNECTOR = "model.connector."
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
_TOP: Mapping[str, str] = {
    "tower.patch": f"{_ENCODER}embeddings.patch_embedding",
    "tower.positions": f"{_ENCODER}embeddings.position_embedding",
    "tower.norm": f"{_ENCODER}post_layernorm",
    "tower.proj": f"{_CONNECTOR}modality_projection.proj",
}
_FIXED: Mapping[str, object] = {
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_resize": True,
}
"""Fields of the processor that have one value here."""


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """``encoder`` is a model without vocabulary, whose tokens are patches."""

    encoder: ModelConfig
    head_dim: int
    """Of the file; the encoder's heads may be padded."""
    trained: int
    """Positions of a side of the table."""
    out_size: int
    """Of the rows that stand in place of embeddings."""
    tile: TileSpec


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


def sees(source: ModelSource) -> bool:
    """Whether the model is of a family with a tower."""
    said = source.config.get("architectures") if source.kind == "hf" else None
    names = {str(name) for name in said} if isinstance(said, list) else set()
    return any(family.tower_tensors and names & {*family.architectures} for family in FAMILIES)


def n_tokens_of(source: ModelSource) -> int:
    """Tokens that stand for a tile. Raises ModelError where two files disagree."""
    n = read_tower(source, 0).tile.n_tokens
    said = Keys(source.read_json(_PROCESSOR), f"{source.path}: {_PROCESSOR}")
    if said.integer("image_seq_len", n) != n:
        raise said.error("image_seq_len", said.raw("image_seq_len"), f"the {n} rows of a tile")
    return n


def slicing_of(source: ModelSource) -> Slicing:
    """Raises ModelError on a processor that reads images in another way."""
    keys = processor_of(source)
    for name, value in _FIXED.items():
        keys.refuse(name, value)
    return Slicing(
        _edge(keys, "max_image_size", 364, MAX_TILE),
        _edge(keys, "size", 4 * 364, MAX_SIDE),
        keys.flag("do_image_splitting", True),
        keys.integer("resample", 1, least=0, most=5),
    )


def read_tower(source: ModelSource, out_size: int) -> TowerConfig:
    """The tower of a folder whose language model has rows of ``out_size``. Raises ModelError."""
    keys = Keys(source.config, f"{source.path}: config.json")
    vision, processor = keys.table("vision_config"), processor_of(source)
    if vision is None:
        raise keys.error("vision_config", None, "the tower of images")
    hidden, heads = vision.integer("hidden_size", 1152), vision.integer("num_attention_heads", 16)
    if hidden % heads:
        raise vision.error("hidden_size", hidden, f"a multiple of num_attention_heads = {heads}")
    patch = vision.integer("patch_size", 32, most=MAX_TILE)
    trained = vision.integer("image_size", 224, least=patch, most=MAX_TILE) // patch
    fold = keys.integer("scale_factor", 2, most=64)
    tile = TileSpec(
        _edge(processor, "max_image_size", 364, MAX_TILE),
        patch,
        fold,
        processor.number("rescale_factor", 1 / 255),
        _channels(processor, "image_mean"),
        _channels(processor, "image_std"),
    )
    if tile.size % patch or tile.side % fold:
        wanted = f"tiles of a multiple of patch_size {patch} x scale_factor {fold}"
        raise processor.error("max_image_size", tile.size, wanted)
    dim = hidden // heads
    padded = -(-dim // HEAD_STEP) * HEAD_STEP
    inner = vision.integer("intermediate_size", 3072)
    layer = LayerSpec(heads, heads, padded, inner, rope=NO_ROPE)
    n_layers = vision.integer("num_hidden_layers", 12, most=MAX_LAYERS)
    vision.word("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    if vision.integer("num_channels", CHANNELS) != CHANNELS:
        raise vision.error("num_channels", vision.raw("num_channels"), str(CHANNELS))
    encoder = ModelConfig(
        family="siglip",
        kind="hf",
        block=_BLOCK,
        vocab_size=0,
        hidden_size=hidden,
        layers=(layer,) * n_layers,
        max_positions=trained**2,
        norm_eps=vision.number("layer_norm_eps", 1e-6),
        attention_scale=float(dim**-0.5),
        ropes={},
    )
    return TowerConfig(encoder, dim, trained, out_size, tile)


_BLOCK = BlockSpec(
    act="gelu_tanh",
    gated=False,
    norm="layer_bias",
    both_ways=True,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
)


def _edge(keys: Keys, name: str, default: int, most: int) -> int:
    table = keys.table(name)
    return default if table is None else table.integer("longest_edge", default, most=most)


def _channels(keys: Keys, name: str) -> tuple[float, float, float]:
    if not keys.has(name):
        return 0.5, 0.5, 0.5
    red, green, blue = keys.numbers(name, CHANNELS)
    return red, green, blue


def build_tower(config: TowerConfig) -> Tower:
    """The raw programs."""
    at = positions(config.tile, config.trained)
    return Tower(_encoder(config), _connector(config), config.tile, at)


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
    columns = config.encoder.hidden_size * config.tile.fold**2
    rows = builder.input(PATCHES, ("T", columns), "f32")
    x = record_linear(builder, rows, "tower.proj", "tower.media", config.out_size)
    return builder.build((x,))


def is_of_tower(tensor: str) -> bool:
    return tensor.startswith((_ENCODER, _CONNECTOR))


def _weight_of(config: TowerConfig) -> Callable[[str, tuple[int, ...]], Weight]:
    def weight(name: str, shape: tuple[int, ...]) -> Weight:
        matrix = name.removesuffix(".bias")
        end = "weight" if matrix == name else "bias"
        if matrix in _TOP:
            tensor = _TOP[matrix]
        else:
            _, _, layer, part = matrix.split(".")
            tensor = f"{_ENCODER}encoder.layers.{layer}.{_NAMES[part]}"
        return Weight(name, shape, (f"{tensor}.{end}",), _steps(config, name))

    return weight


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
