"""A model whose linears hold random numbers in other formats: what it computes means nothing, in
the time that the model itself would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as with_fields

import numpy as np
from msgspec.structs import replace

from kvasir.bench.synthetic import NORMAL_BYTES
from kvasir.checkpoints.loaded import LoadedModel
from kvasir.checkpoints.tensors import build_program
from kvasir.formats.decode import Bytes
from kvasir.formats.mapped import TensorTable
from kvasir.formats.types import FORMATS, TensorInfo

_INTEGERS = {"QG2": 2, "QG3": 3, "QG4": 4, "QG8": 8, "Q4C": 4, "Q8C": 8}
"""Bits of a code, by the first letters of formats whose blocks are 4 bytes of scale, a zero, and a
byte for each code."""
_HEAD = 4


def pretended(model: LoadedModel, formats: Mapping[str, str], n_layers: int) -> LoadedModel:
    """Its first ``n_layers``; tensors named in ``formats`` in theirs, the others as they are."""
    config = replace(model.config, layers=model.config.layers[:n_layers], sees=False)
    table = model.source.tensors
    needed = dict.fromkeys(
        x for weight in build_program(config).weights.values() for x in weight.sources
    )
    shapes = {name: table[name].shape for name in needed if name in formats}
    most: dict[str, int] = {}
    for name, shape in shapes.items():
        size = FORMATS[formats[name]].n_bytes(shape)
        most[formats[name]] = max(size, most.get(formats[name], 0))
    noise = {name: random_blocks(name, size) for name, size in most.items()}
    tensors = {name: table[name] for name in needed}
    for name, shape in shapes.items():
        stored = formats[name]
        data = noise[stored][: FORMATS[stored].n_bytes(shape)]
        tensors[name] = TensorInfo(name, stored, shape, data.data)
    source = with_fields(model.source, tensors=TensorTable(tensors), files=())
    return LoadedModel(source, config)


def random_blocks(format_name: str, n_bytes: int) -> Bytes:
    """Whole blocks whose scales are normal numbers."""
    low, high = NORMAL_BYTES
    form = FORMATS[format_name]
    found = np.random.default_rng(20).integers(low, high + 1, n_bytes, np.uint8)
    bits = _INTEGERS.get(format_name.partition("_")[0])
    if bits is not None:
        blocks = found.reshape(-1, form.block_bytes)
        blocks[:, :_HEAD] = blocks[0, :_HEAD]  # one scale for a row, where the format has one
        blocks[:, _HEAD] = 1 << (bits - 1)
        blocks[:, _HEAD + 1 :] &= np.uint8((1 << bits) - 1)
    elif form.kind == "floats" and form.block > 1:
        blocks = found.reshape(-1, form.block_bytes)
        blocks[:, :_HEAD] = blocks[0, :_HEAD]
    return found
