"""The towers of Qwen2-VL to Qwen3.5, from their config: images of any size."""

from __future__ import annotations

from math import isqrt

from msgspec.structs import replace

from kvasir.checkpoints.keys import Keys
from kvasir.core.tiles import CHANNELS, MAX_TOKENS, TileSpec
from kvasir.ir.bundle import MAX_DEEP
from kvasir.models.family import QwenTowerSpec
from kvasir.models.spec import (
    MAX_LAYERS,
    ROPE,
    BlockSpec,
    LayerSpec,
    ModelConfig,
    RopeAxes,
    RopeConfig,
)
from kvasir.models.towers import QwenTower

MAX_PATCH = 64
"""Pixels of a side."""
MAX_FOLD = 8
"""Patches of a side of what becomes a row; tables of rope have as many rows as 4,096 times that."""
HEAD_STEP = 16
"""Heads are padded to a multiple of this many numbers, which all executors take."""
THETA = 1e4
_EPS = 1e-6
CLIP_MEAN = 0.48145466, 0.4578275, 0.40821073
CLIP_STD = 0.26862954, 0.26130258, 0.27577711
_ACTS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu"}


def read_deepstack(spec: QwenTowerSpec, vision: Keys) -> tuple[int, ...]:
    """Raises ModelError on others than a few that ascend."""
    found = _layers(vision, "deepstack_visual_indexes", spec.taps, spec.sizes["depth"])
    if len(found) > MAX_DEEP:
        raise vision.error("deepstack_visual_indexes", list(found), f"at most {MAX_DEEP} layers")
    return found


def _layers(vision: Keys, name: str, default: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """Numbers of layers, which ascend."""
    said, depth = vision.raw(name), vision.integer("depth", depth, most=MAX_LAYERS)
    found = default if said is None else tuple(said) if isinstance(said, list) else (-1,)
    fits = all(type(x) is int and 0 <= x < depth for x in found)
    if not fits or list(found) != sorted(set(found)):
        raise vision.error(name, said, f"ascending numbers of the {depth} layers")
    return found


def read_qwen_tower(
    spec: QwenTowerSpec, bases: tuple[str, str], vision: Keys, processor: Keys, out_size: int
) -> QwenTower:
    """The tower of a model with rows of ``out_size``; ``bases``: before names of tensors of encoder
    and merger. Raises ModelError."""
    sizes = spec.sizes
    tile = _tile(spec, vision, processor)
    encoder = _encoder_config(spec, vision)
    dim = encoder.hidden_size // encoder.layers[0].n_heads
    name = spec.keys.get("out_hidden_size", "out_hidden_size")
    said = vision.integer(name, sizes["out_hidden_size"])
    if out_size and said != out_size:
        raise vision.error(name, said, f"the {out_size} numbers of an embedding")
    taps = read_deepstack(spec, vision)
    tower = QwenTower(
        spec=spec,
        bases=bases,
        encoder=encoder,
        head_dim=dim,
        side=_side(spec, vision),
        out_size=out_size,
        tile=tile,
        taps=taps,
    )
    if not spec.full:
        return tower
    pixels = vision.integer("window_size", sizes["window_size"], least=tile.unit)
    full = _layers(vision, "fullatt_block_indexes", spec.full, sizes["depth"])
    return replace(tower, window=pixels // tile.fold // tile.patch, full=full)


def _side(spec: QwenTowerSpec, vision: Keys) -> int:
    name = "num_position_embeddings"
    if name not in spec.sizes:
        return 0
    n = vision.integer(name, spec.sizes[name])
    if isqrt(n) ** 2 != n:
        raise vision.error(name, n, "a square")
    return isqrt(n)


def _tile(spec: QwenTowerSpec, vision: Keys, processor: Keys) -> TileSpec:
    sizes = spec.sizes
    patch, fold, frames = (
        vision.integer(name, sizes[name], most=most)
        for name, most in (
            ("patch_size", MAX_PATCH),
            ("spatial_merge_size", MAX_FOLD),
            ("temporal_patch_size", MAX_FOLD),
        )
    )
    pairs = (("patch_size", 14, patch), ("merge_size", 2, fold), ("temporal_patch_size", 2, frames))
    for name, default, own in pairs:
        if processor.integer(name, default) != own:
            raise processor.error(name, processor.raw(name), f"the {own} of vision_config")
    for name in ("in_channels", "in_chans"):
        if vision.integer(name, CHANNELS) != CHANNELS:
            raise vision.error(name, vision.raw(name), str(CHANNELS))
    factor = processor.number("rescale_factor", 1 / 255)
    mean = channels(processor, "image_mean", CLIP_MEAN)
    std = channels(processor, "image_std", CLIP_STD)
    return TileSpec(0, patch, fold, factor, mean, std, frames)


def channels(
    keys: Keys, name: str, default: tuple[float, float, float]
) -> tuple[float, float, float]:
    """A number of each channel. Raises ModelError."""
    if not keys.has(name):
        return default
    red, green, blue = keys.numbers(name, CHANNELS)
    return red, green, blue


def _size(spec: QwenTowerSpec, vision: Keys, name: str) -> int:
    most = MAX_LAYERS if name == "depth" else 1 << 24
    return vision.integer(spec.keys.get(name, name), spec.sizes[name], most=most)


def _encoder_config(spec: QwenTowerSpec, vision: Keys) -> ModelConfig:
    hidden, heads, depth = (_size(spec, vision, x) for x in ("hidden_size", "num_heads", "depth"))
    if hidden % heads or hidden // heads % 4:
        name = spec.keys.get("hidden_size", "hidden_size")
        raise vision.error(name, hidden, f"a multiple of 4 x num_heads = {4 * heads}")
    is_ratio = "mlp_ratio" in spec.sizes
    inner = _size(spec, vision, "mlp_ratio" if is_ratio else "intermediate_size")
    inner = hidden * inner if is_ratio else inner
    act = _ACTS[spec.block.act]
    vision.word("hidden_act", (act,), act)
    dim = hidden // heads
    return plane_encoder(spec.block, hidden, heads, dim, inner, depth, THETA, _EPS)


def plane_encoder(
    block: BlockSpec,
    hidden: int,
    heads: int,
    dim: int,
    inner: int,
    depth: int,
    theta: float,
    eps: float,
) -> ModelConfig:
    """A model without vocabulary, whose tokens are patches: ``depth`` equal layers, whose heads of
    ``dim`` numbers are padded, and turn by lines and columns."""
    padded, axes = -(-dim // HEAD_STEP) * HEAD_STEP, RopeAxes((0, dim // 4, dim // 4))
    rope = RopeConfig(theta, rotary_dim=0 if dim == padded else dim, axes=axes)
    return ModelConfig(
        family="tower",
        kind="hf",
        block=block,
        vocab_size=0,
        hidden_size=hidden,
        layers=(LayerSpec(heads, heads, padded, inner),) * depth,
        max_positions=MAX_TOKENS,
        norm_eps=eps,
        attention_scale=float(dim**-0.5),
        ropes={ROPE: rope},
    )
