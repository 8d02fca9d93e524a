"""The tower of Qwen3-VL and Qwen3.5: images of any size, rope over lines and columns, rows between
those of a table of positions, and a merger of neighbours, of the last rows and of some before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt

import numpy as np

from kvasir.core.tiles import CHANNELS, MAX_TOKENS, Resizing, TileSpec
from kvasir.ir.builder import Builder
from kvasir.ir.bundle import CORNERS, MAX_DEEP, PATCHES, SHARES, Tower, deep_patches
from kvasir.ir.program import FloatArray, Program, Transform, Weight
from kvasir.models.decoder import record_blocks
from kvasir.models.family import QwenTowerSpec
from kvasir.models.keys import Keys
from kvasir.models.parts import record_linear, record_norm
from kvasir.models.record_rope import record_angles
from kvasir.models.rope import rope_table
from kvasir.models.spec import (
    MAX_LAYERS,
    ROPE,
    BlockSpec,
    LayerSpec,
    ModelConfig,
    RopeAxes,
    RopeConfig,
)

MAX_PATCH = 64
"""Pixels of a side."""
HEAD_STEP = 16
"""Heads are padded to a multiple of this many numbers, which all executors take."""
_BLOCK = BlockSpec(
    act="gelu_tanh",
    gated=False,
    norm="layer_bias",
    both_ways=True,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
)
_THETA = 1e4
_EPS = 1e-6
_CLIP_MEAN = 0.48145466, 0.4578275, 0.40821073
_CLIP_STD = 0.26862954, 0.26130258, 0.27577711
_TOP: Mapping[str, str] = {
    "tower.patch": "patch_embed.proj",
    "tower.positions": "pos_embed",
    "tower.norm": "merger.norm",
}
_LAYER: Mapping[str, str] = {
    "attn_norm": "norm1",
    "mlp_norm": "norm2",
    **dict.fromkeys("qkv", "attn.qkv"),
    "o": "attn.proj",
    "up": "mlp.linear_fc1",
    "down": "mlp.linear_fc2",
}
_MERGER: Mapping[str, str] = {"norm": "norm", "up": "linear_fc1", "down": "linear_fc2"}
_FIXED: Mapping[str, object] = {
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_resize": True,
}
"""Fields of the processor that have one value here."""


@dataclass(frozen=True, slots=True)
class QwenTower:
    """``encoder`` is a model without vocabulary, whose tokens are patches."""

    spec: QwenTowerSpec
    encoder: ModelConfig
    head_dim: int
    """Of the file; the encoder's heads may be padded."""
    side: int
    """Positions of a side of the table."""
    out_size: int
    """Of the rows that stand in place of embeddings."""
    tile: TileSpec
    taps: tuple[int, ...]
    """Layers whose rows are merged, too, and added behind the first layers of the target."""

    def has(self, tensor: str) -> bool:
        """Whether a tensor is of the tower."""
        return tensor.startswith(self.spec.prefixes)

    def build(self) -> Tower:
        """The raw programs."""
        nowhere = np.zeros(0, np.int32)
        return Tower(_encoder(self), _connector(self), self.tile, nowhere, self.side)


def read_deepstack(spec: QwenTowerSpec, vision: Keys) -> tuple[int, ...]:
    """Raises ModelError on others than a few that ascend."""
    name, depth = "deepstack_visual_indexes", vision.integer("depth", 27, most=MAX_LAYERS)
    said = vision.raw(name)
    taps = spec.taps if said is None else tuple(said) if isinstance(said, list) else ()
    fits = all(type(x) is int and 0 <= x < depth for x in taps) and len(taps) <= MAX_DEEP
    if not fits or list(taps) != sorted(set(taps)) or not isinstance(said, list | None):
        raise vision.error(name, said, f"at most {MAX_DEEP} ascending layers of {depth}")
    return taps


def read_resizing(processor: Keys) -> Resizing:
    """Raises ModelError on a processor that reads images in another way."""
    for name, value in _FIXED.items():
        processor.refuse(name, value)
    size = processor.table("size")
    least, most = 56**2, 1280 * 28**2
    if size is not None:
        least, most = size.integer("shortest_edge", least), size.integer("longest_edge", most)
    least, most = processor.integer("min_pixels", least), processor.integer("max_pixels", most)
    unit = processor.integer("patch_size", 14, most=MAX_PATCH) * processor.integer("merge_size", 2)
    return Resizing(unit, least, most, processor.integer("resample", 3, least=0, most=5))


def read_qwen_tower(
    spec: QwenTowerSpec, vision: Keys, processor: Keys, out_size: int
) -> QwenTower:
    """The tower of a model with rows of ``out_size``. Raises ModelError."""
    tile = _tile(vision, processor)
    encoder = _encoder_config(vision)
    n_positions = vision.integer("num_position_embeddings", 2304)
    side = isqrt(n_positions)
    if side**2 != n_positions:
        raise vision.error("num_position_embeddings", n_positions, "a square")
    said = vision.integer("out_hidden_size", 3584)
    if out_size and said != out_size:
        raise vision.error("out_hidden_size", said, f"the {out_size} numbers of an embedding")
    dim = encoder.hidden_size // encoder.layers[0].n_heads
    return QwenTower(spec, encoder, dim, side, out_size, tile, read_deepstack(spec, vision))


def _tile(vision: Keys, processor: Keys) -> TileSpec:
    patch, fold, frames = (
        vision.integer(name, default, most=MAX_PATCH)
        for name, default in (
            ("patch_size", 16),
            ("spatial_merge_size", 2),
            ("temporal_patch_size", 2),
        )
    )
    pairs = (("patch_size", 14, patch), ("merge_size", 2, fold), ("temporal_patch_size", 2, frames))
    for name, default, own in pairs:
        if processor.integer(name, default) != own:
            raise processor.error(name, processor.raw(name), f"the {own} of vision_config")
    if vision.integer("in_channels", CHANNELS) != CHANNELS:
        raise vision.error("in_channels", vision.raw("in_channels"), str(CHANNELS))
    factor = processor.number("rescale_factor", 1 / 255)
    mean = _channels(processor, "image_mean", _CLIP_MEAN)
    std = _channels(processor, "image_std", _CLIP_STD)
    return TileSpec(0, patch, fold, factor, mean, std, frames)


def _channels(
    keys: Keys, name: str, default: tuple[float, float, float]
) -> tuple[float, float, float]:
    if not keys.has(name):
        return default
    red, green, blue = keys.numbers(name, CHANNELS)
    return red, green, blue


def _encoder_config(vision: Keys) -> ModelConfig:
    hidden, heads = vision.integer("hidden_size", 1152), vision.integer("num_heads", 16)
    if hidden % heads or hidden // heads % 4:
        raise vision.error("hidden_size", hidden, f"a multiple of 4 x num_heads = {4 * heads}")
    vision.word("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    dim, inner = hidden // heads, vision.integer("intermediate_size", 4304)
    padded = -(-dim // HEAD_STEP) * HEAD_STEP
    layer, depth = LayerSpec(heads, heads, padded, inner), vision.integer("depth", 27, most=MAX_LAYERS)
    rotary_dim = 0 if dim == padded else dim
    rope = RopeConfig(_THETA, rotary_dim=rotary_dim, axes=RopeAxes((0, dim // 4, dim // 4)))
    return ModelConfig(
        family="qwen_tower",
        kind="hf",
        block=_BLOCK,
        vocab_size=0,
        hidden_size=hidden,
        layers=(layer,) * depth,
        max_positions=MAX_TOKENS,
        norm_eps=_EPS,
        attention_scale=float(dim**-0.5),
        ropes={ROPE: rope},
    )


def _plane_table(dim: int, rows: int) -> FloatArray:
    """Of rope whose first pairs turn by lines and whose others by columns, with equal frequencies:
    cos | sin, f32 [rows, dim]."""
    cos, sin = np.split(rope_table(RopeConfig(_THETA), dim // 2, rows), 2, axis=1)
    return np.concatenate([cos, cos, sin, sin], axis=1)


def _encoder(config: QwenTower) -> Program:
    builder, encoder, tile = Builder("tower", _weight_of(config)), config.encoder, config.tile
    patches = builder.input(PATCHES, ("T", tile.n_columns), "f32")
    corners = builder.input(CORNERS, ("T", 4), "i32")
    shares = builder.input(SHARES, ("T", 4), "f32")
    builder.input("ends", ("T",), "i32")
    dim, hidden = config.head_dim, encoder.hidden_size
    builder.constant(ROPE, _plane_table(dim, MAX_TOKENS * tile.fold))
    record_angles(builder, encoder.ropes, {ROPE: dim})
    x = record_linear(builder, patches, "tower.patch", "tower.x.patch", hidden, bias=True)
    table = builder.weight("tower.positions", (config.side**2, hidden))
    position = builder.op("between", (corners, shares), "tower.x.positions", (table,))
    x = builder.op("add", (x, position), "tower.x")
    tapped: list[str] = []

    def after(layer: int, x: str) -> str:
        tapped.extend([x] * (layer in config.taps))
        return x

    x = record_blocks(builder, encoder, x, prefix="tower.", after=after)
    x = record_norm(builder, encoder, x, "tower.norm", "tower.rows")
    return builder.build((x, *tapped))


def _connector(config: QwenTower) -> Program:
    builder = Builder("connector", _weight_of(config))
    columns = config.encoder.hidden_size * config.tile.fold**2
    inputs = {"tower.merger": PATCHES}
    inputs |= {f"tower.deep{i}": deep_patches(i) for i in range(len(config.taps))}
    outs: list[str] = []
    for name, rows in inputs.items():
        x = builder.input(rows, ("T", columns), "f32")
        if rows != PATCHES:
            x = record_norm(builder, config.encoder, x, f"{name}.norm", f"{name}.rows")
        x = record_linear(builder, x, f"{name}.up", f"{name}.x", columns, bias=True)
        x = builder.op("act", (x,), f"{name}.hidden", act="gelu")
        out = f"{name}.media"
        outs.append(record_linear(builder, x, f"{name}.down", out, config.out_size, bias=True))
    return builder.build(tuple(outs))


def _weight_of(config: QwenTower) -> Callable[[str, tuple[int, ...]], Weight]:
    (base, *_) = config.spec.prefixes

    def weight(name: str, shape: tuple[int, ...]) -> Weight:
        matrix = name.removesuffix(".bias")
        end = "weight" if matrix == name else "bias"
        return Weight(name, shape, (f"{base}{_tensor(matrix)}.{end}",), _steps(config, name))

    return weight


def _tensor(name: str) -> str:
    """Of a weight "tower.layers.3.q", "tower.merger.up" or "tower.deep1.norm"."""
    if name in _TOP:
        return _TOP[name]
    _, group, *rest = name.split(".")
    if group == "layers":
        layer, part = rest
        return f"blocks.{layer}.{_LAYER[part]}"
    merger = "merger" if group == "merger" else f"deepstack_merger_list.{group[len('deep') :]}"
    return f"{merger}.{_MERGER[rest[0]]}"


def _steps(config: QwenTower, name: str) -> tuple[Transform, ...]:
    """From a tensor to the weight."""
    if name == "tower.patch":
        return (Transform("cube_rows", (config.tile.frames, config.tile.patch)),)
    part = name.removesuffix(".bias").rpartition(".")[2]
    layer, n = config.encoder.layers[0], config.encoder.hidden_size
    sizes = layer.n_heads, config.head_dim, layer.head_dim
    is_padded = config.head_dim != layer.head_dim
    if part in ("q", "k", "v"):
        step = Transform(f"{part}_of_qkv", ("qkv".index(part) * n, n, 3 * n))
        return (step, Transform("padded_heads", sizes)) if is_padded else (step,)
    return (Transform("padded_columns", sizes),) if is_padded and name.endswith(".o") else ()
