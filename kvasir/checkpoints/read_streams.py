"""Readers of what Gemma 3n has beyond others: rows of several streams, and gates of which a share
counts."""

from __future__ import annotations

from math import isfinite
from statistics import NormalDist

from msgspec.structs import replace

from kvasir.checkpoints.fields import Fields
from kvasir.checkpoints.tensors import MAX_STREAMS, tensor_name
from kvasir.formats.mapped import TensorTable
from kvasir.models.spec import LayerSpec
from kvasir.models.stream_spec import StreamSpec

_SPARSE_LAYERS, _SPARSE = 10, 0.95
"""Of a folder that says nothing and has more layers: the first ones, and the share of zeros."""


def read_streams(fields: Fields, tensors: TensorTable) -> StreamSpec | None:
    if not fields.has("n_streams"):
        return None
    n = fields.integer("n_streams", least=2, most=MAX_STREAMS)
    active = fields.integer("active_stream", least=0, most=n - 1)
    return StreamSpec(n, active, _rank(fields, tensors), fields.flag("scaled_stream"))


def _rank(fields: Fields, tensors: TensorTable) -> int:
    """GGUF files say it by their tensors."""
    if fields.kind == "hf":
        return fields.integer("laurel_rank")
    name = tensor_name(fields.family, fields.kind, "layers.0.laurel_down")
    found = tensors.get(name)
    if found is None or len(found.shape) != 2:
        raise fields.keys.error("laurel_rank", None, f"a matrix {name}")
    return found.shape[0]


def read_deviations(fields: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """The layers with their gates: folders say a share of zeros for each, which is that of a normal
    distribution, GGUF files how many deviations these are; minus infinity of none."""
    if not fields.has("sparsity"):
        return layers
    n = len(layers)
    said = fields.raw("sparsity")
    said = _default(n) if said is None and fields.kind == "hf" else said
    least, most = (0, 1) if fields.kind == "hf" else (float("-inf"), 10)
    numbers = list(said) if isinstance(said, list | tuple) else []
    fits = all(type(x) in (int, float) and least <= x < most for x in numbers)
    if not fits or len(numbers) != n:
        expected = f"{n} numbers, each below {most}" + (" and not negative" * (not least))
        raise fields.error("sparsity", said, expected)
    if fields.kind == "hf":
        numbers = [NormalDist().inv_cdf(share) if share else float("-inf") for share in numbers]
    each = zip(layers, map(float, numbers), strict=True)
    return tuple(replace(layer, deviations=x if isfinite(x) else None) for layer, x in each)


def _default(n: int) -> list[float]:
    n_sparse = _SPARSE_LAYERS if n > _SPARSE_LAYERS else 0
    return [_SPARSE] * n_sparse + [0.0] * (n - n_sparse)
