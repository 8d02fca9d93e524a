"""How images are brought to a model's tiles, from what a folder says of its processor. Raises
ModelError, naming file and field, on a processor that reads them in another way."""

from __future__ import annotations

from math import ceil

from kvasir.checkpoints.keys import Keys
from kvasir.checkpoints.qwen_tower import MAX_PATCH
from kvasir.checkpoints.tower import edge, processor_of, read_tower, tile_size, tower_spec
from kvasir.core.tiles import MAX_TILES, MAX_TOKENS, TileSpec
from kvasir.models.family import PixtralTowerSpec, PooledTowerSpec, QwenTowerSpec, TowerSpec
from kvasir.vision.paving import read_paving
from kvasir.vision.preparing import MAX_SIDE, Bounding, Preparing, Resizing, Scaling, Slicing
from kvasir.weights.source import ModelSource

_PROCESSOR = "processor_config.json"
_FILTERS = {"grid": 1, "whole": 2, "shape": 3, "paved": 3}
"""Pillow's numbers of filters, of ``TowerSpec.cuts``."""
_FLAGS = ("do_rescale", "do_convert_rgb", "do_resize")
"""Of the processor, which are set here."""
_N_ROWS = ("image_seq_len", "image_seq_length", "num_image_tokens")
"""Names that processors have for the rows of a tile."""
_LONGEST = 1024


def n_tokens_of(source: ModelSource) -> int:
    """Tokens that stand for a tile, at most. Raises ModelError where two files disagree."""
    n = read_tower(source, 0).tile.n_tokens
    if isinstance(tower_spec(source), TowerSpec):
        said = _said(source)
        for name in _N_ROWS:
            if said.integer(name, n) != n:
                raise said.error(name, said.raw(name), f"the {n} rows of a tile")
    return n


def slicing_of(source: ModelSource) -> Preparing:
    """Raises ModelError on a processor that reads images in another way."""
    spec, keys = tower_spec(source), processor_of(source)
    if isinstance(spec, PooledTowerSpec):
        return _read_scaling(keys, read_tower(source, 0).tile)
    if isinstance(spec, PixtralTowerSpec):
        return _read_bounding(keys, _merged_unit(source))
    if isinstance(spec, QwenTowerSpec):
        return _read_resizing(keys)
    return _read_slicing(source, spec, keys)


def _read_slicing(source: ModelSource, spec: TowerSpec, keys: Keys) -> Preparing:
    for name in (*_FLAGS, "do_normalize"):
        keys.refuse(name, True)
    keys.refuse("do_pan_and_scan", False)
    tile = tile_size(keys, spec)
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
    longest = edge(keys, "size", 4 * 364, MAX_SIDE)
    return Slicing(tile, longest, keys.flag("do_image_splitting", True), resample)


def _said(source: ModelSource) -> Keys:
    return Keys(source.read_json(_PROCESSOR), f"{source.path}: {_PROCESSOR}")


def _merged_unit(source: ModelSource) -> int:
    """Pixels of a side of a row, as the processor says them, too. Raises ModelError."""
    tile = read_tower(source, 0).tile
    said, sizes = (
        _said(source),
        (("patch_size", 16, tile.patch), ("spatial_merge_size", 1, tile.fold)),
    )
    for name, default, own in sizes:
        if said.integer(name, default) != own:
            raise said.error(name, said.raw(name), f"the {own} of config.json")
    return tile.unit


def _read_resizing(processor: Keys) -> Resizing:
    for name in (*_FLAGS, "do_normalize"):
        processor.refuse(name, True)
    size = processor.table("size")
    least, most = 56**2, 1280 * 28**2
    if size is not None:
        least, most = size.integer("shortest_edge", least), size.integer("longest_edge", most)
    least, most = processor.integer("min_pixels", least), processor.integer("max_pixels", most)
    unit = processor.integer("patch_size", 14, most=MAX_PATCH) * processor.integer("merge_size", 2)
    return Resizing(unit, least, most, processor.integer("resample", 3, least=0, most=5))


def _read_bounding(processor: Keys, unit: int) -> Bounding:
    for name in (*_FLAGS, "do_normalize"):
        processor.refuse(name, True)
    processor.refuse("do_center_crop", False)
    size = processor.table("size")
    longest = _LONGEST if size is None else size.integer("longest_edge", most=MAX_SIDE)
    if ceil(longest / unit) ** 2 > MAX_TOKENS:
        raise processor.error("size", {"longest_edge": longest}, f"at most {MAX_TOKENS} tokens")
    return Bounding(unit, longest, processor.integer("resample", 3, least=0, most=5))


def _read_scaling(processor: Keys, tile: TileSpec) -> Scaling:
    for name in _FLAGS:
        processor.refuse(name, True)
    processor.refuse("do_normalize", False)
    return Scaling(tile.unit, tile.most, processor.integer("resample", 3, least=0, most=5))
