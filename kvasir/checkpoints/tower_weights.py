"""Where the weights of a tower lie in its files, and the steps from tensor to weight."""

from __future__ import annotations

from collections.abc import Mapping

from kvasir.checkpoints.tower import tensor_of
from kvasir.core.tiles import CHANNELS
from kvasir.ir.builder import WeightMaker
from kvasir.ir.bundle import Tower
from kvasir.ir.program import Transform, Weight
from kvasir.models.family import PixtralTowerSpec
from kvasir.models.parts import QUICK, QUICK_GELU
from kvasir.models.tower_programs import record_tower
from kvasir.models.towers import AnyTower, PooledTower, QwenTower, TowerConfig


def build_tower(config: AnyTower) -> Tower:
    """The raw programs."""
    return record_tower(config, _weight_of(config))


def _weight_of(config: AnyTower) -> WeightMaker:
    if isinstance(config, PooledTower):
        return _of_pooled(config)
    return _of_qwen(config) if isinstance(config, QwenTower) else _of_tiles(config)


def _of_tiles(config: TowerConfig) -> WeightMaker:
    spec, (encoder, connector) = config.spec, config.bases

    def weight(name: str, shape: tuple[int, ...]) -> Weight:
        matrix = name.removesuffix(".bias")
        end = "weight" if matrix == name else "bias"
        _, *layer, part = matrix.split(".")
        if part == "newline":
            return Weight(name, shape, (config.newline,), ())
        if part in spec.connector:
            names, base = spec.connector[part], connector
        else:
            names = spec.tensors[part]
            base = f"{encoder}{spec.layers}.{layer[1]}." if layer else encoder
        steps = tuple(Transform(step, ()) for step in names.hf_step.split())
        steps += _tile_steps(config, part, end)
        return Weight(name, shape, (tensor_of(names, base, end),), steps)

    return weight


def _tile_steps(config: TowerConfig, part: str, end: str) -> tuple[Transform, ...]:
    """That follow from sizes."""
    if part == "patch" and end == "weight":
        return (Transform("patch_rows", (config.tile.patch,)),)
    layer = config.encoder.layers[0]
    step = _PADDED.get((part, end)) if layer.head_dim != config.head_dim else None
    sizes = layer.n_heads, config.head_dim, layer.head_dim
    return () if step is None else (Transform(step, sizes),)


_PADDED: Mapping[tuple[str, str], str] = {
    **{(part, end): "padded_heads" for part in "qkv" for end in ("weight", "bias")},
    ("o", "weight"): "padded_columns",
}
"""Parts of a layer that have heads, and the step that pads them."""


def _of_qwen(config: QwenTower) -> WeightMaker:
    def weight(name: str, shape: tuple[int, ...]) -> Weight:
        matrix = name.removesuffix(".bias")
        tensor = f"{_tensor(config, matrix)}.{'weight' if matrix == name else 'bias'}"
        sources: tuple[str, ...] = (tensor,)
        if name == "tower.patch" and config.spec.of_gguf:
            sources = (tensor, *(f"{tensor}.{i}" for i in range(1, config.tile.frames)))
        return Weight(name, shape, sources, _qwen_steps(config, name))

    return weight


def _tensor(config: QwenTower, name: str) -> str:
    """Of a weight "tower.patch", "tower.layers.3.q", "tower.merger.up" or "tower.deep1.norm"."""
    _, group, *rest = name.split(".")
    if group == "layers":
        layer, part = rest
        key, number = part, layer
    elif group.startswith("deep"):
        key, number = f"deep.{rest[0]}", group.removeprefix("deep")
        number = str(config.taps[int(number)]) if config.spec.of_gguf else number
    else:
        key, number = ".".join([group, *rest]), ""
    is_merger = key.startswith("merger.")
    is_merger |= key == "norm" and isinstance(config.spec, PixtralTowerSpec)
    return config.bases[is_merger] + config.spec.names[key].format(number)


def _qwen_steps(config: QwenTower, name: str) -> tuple[Transform, ...]:
    """From a tensor to the weight."""
    tile, names = config.tile, config.spec.names
    if name == "tower.patch":
        if "temporal_patch_size" not in config.spec.sizes:
            return (Transform("patch_rows", (tile.patch,)),)
        step = "frame_rows" if config.spec.of_gguf else "cube_rows"
        return (Transform(step, (tile.frames, tile.patch)),)
    if name == "tower.merger.join":
        return (Transform("places_first", (tile.fold**2,)),)
    is_inner = name.startswith("tower.layers.") and name.endswith(".up.bias")
    if is_inner and config.spec.block.act == QUICK_GELU:
        return (Transform("times", (QUICK,)),)
    part = name.removesuffix(".bias").rpartition(".")[2]
    layer, n = config.encoder.layers[0], config.encoder.hidden_size
    sizes = layer.n_heads, config.head_dim, layer.head_dim
    is_padded = config.head_dim != layer.head_dim
    if part in ("q", "k", "v"):
        steps = [Transform("padded_heads", sizes)] if is_padded else []
        if part != "v" and isinstance(config.spec, PixtralTowerSpec) and config.spec.permuted:
            steps.insert(0, Transform("permute_rope", (layer.n_heads,)))
        if names["q"] == names["k"]:
            steps.insert(0, Transform(f"{part}_of_qkv", ("qkv".index(part) * n, n, 3 * n)))
        return tuple(steps)
    return (Transform("padded_columns", sizes),) if is_padded and name.endswith(".o") else ()


def _of_pooled(config: PooledTower) -> WeightMaker:
    def weight(name: str, shape: tuple[int, ...]) -> Weight:
        _, *layer, part = name.split(".")
        tensor = config.spec.names[part].format(*layer[1:])
        tensor = tensor.removesuffix(".") if tensor.endswith(".") else f"{tensor}.weight"
        base = config.bases[part == "proj"]
        return Weight(name, shape, (base + tensor,), _pooled_steps(config, part))

    return weight


def _pooled_steps(config: PooledTower, part: str) -> tuple[Transform, ...]:
    """From a tensor to the weight."""
    if part in _PLAIN:
        return _PLAIN[part]
    n_heads, dim = config.encoder.layers[0].n_heads, config.head_dim
    padded = config.encoder.layers[0].head_dim
    n = 1 if part.endswith("_norm") else n_heads
    steps: list[Transform] = []
    if part in ("q", "k", "q_norm", "k_norm"):
        steps.append(Transform("lines_first", (n,)))
    if dim != padded and part in ("q", "k", "v", "q_norm", "k_norm"):
        steps.append(Transform("padded_heads", (n, dim, padded)))
    if dim != padded and part == "o":
        steps.append(Transform("padded_columns", (n, dim, padded)))
    return tuple(steps)


_PLAIN = {
    "patch": (Transform("places_first", (CHANNELS,)),),
    "positions": (Transform("joined", (2,)),),
    "minus_bias": (Transform("times", (-1.0,)),),
}
