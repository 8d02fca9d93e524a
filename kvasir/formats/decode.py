"""Values of stored tensors: a NumPy decoder of each number format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from kvasir.formats import iquants, kquants, modules, simple
from kvasir.formats.split import Bytes as Bytes
from kvasir.formats.split import Floats as Floats
from kvasir.formats.split import Split, join
from kvasir.formats.types import FORMATS, MODULE_FORMATS, TensorInfo


def decode(format_name: str, data: Bytes) -> Floats:
    """Bytes of whole blocks, 1-D -> f32, 1-D, one value per element."""
    if FORMATS[format_name].has_integers:
        return join(split(format_name, data))
    if format_name in _FLOAT_BLOCKS:
        rows = data.reshape(-1, FORMATS[format_name].block_bytes)
        return _FLOAT_BLOCKS[format_name](rows).reshape(-1)
    return _FLOATS[format_name](data)


def split(format_name: str, data: Bytes) -> Split:
    """As ``decode``, before integers meet their scales; for formats that have integers."""
    return _SPLITS[format_name](data.reshape(-1, FORMATS[format_name].block_bytes))


def bytes_of(tensor: TensorInfo) -> Bytes:
    """Its stored bytes, 1-D: a view of the file, or made of the tensors of a module."""
    module = tensor.module
    return np.frombuffer(tensor.data if module is None else module.rows(), np.uint8)


def values_of(tensor: TensorInfo) -> Floats:
    """Its values as a new f32 array of its shape."""
    return decode(tensor.format, bytes_of(tensor)).reshape(tensor.shape)


def _decode_f32(data: Bytes) -> Floats:
    return data.view("<f4").astype(np.float32)


def _decode_f16(data: Bytes) -> Floats:
    return data.view("<f2").astype(np.float32)


def _decode_bf16(data: Bytes) -> Floats:
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


_FLOATS: Mapping[str, Callable[[Bytes], Floats]] = {
    "F32": _decode_f32,
    "F16": _decode_f16,
    "BF16": _decode_bf16,
}
_FLOAT_BLOCKS: Mapping[str, Callable[[Bytes], Floats]] = {
    "F8C": modules.f8,
    "F8_32": modules.f8,
    "F8_128": modules.f8,
    "NF4": partial(modules.four_bits, modules.NF4_VALUES),
    "FP4": partial(modules.four_bits, modules.FP4B_VALUES),
}
"""Bytes of whole blocks [blocks, bytes of a block] -> their values."""
_SPLITS: Mapping[str, Callable[[Bytes], Split]] = {
    "Q4_0": simple.q4_0,
    "Q4_1": simple.q4_1,
    "Q5_0": simple.q5_0,
    "Q5_1": simple.q5_1,
    "Q8_0": simple.q8_0,
    "Q2_K": kquants.q2_k,
    "Q3_K": kquants.q3_k,
    "Q4_K": kquants.q4_k,
    "Q5_K": kquants.q5_k,
    "Q6_K": kquants.q6_k,
    "IQ4_NL": simple.iq4_nl,
    "IQ4_XS": iquants.iq4_xs,
    "IQ3_S": iquants.iq3_s,
    "IQ3_XXS": iquants.iq3_xxs,
    "IQ2_XXS": iquants.iq2_xxs,
    "IQ2_XS": iquants.iq2_xs,
    "IQ2_S": iquants.iq2_s,
    "IQ1_S": iquants.iq1_s,
    "IQ1_M": iquants.iq1_m,
    "TQ1_0": simple.tq1_0,
    "TQ2_0": simple.tq2_0,
    "MXFP4": simple.mxfp4,
    **{name: modules.grouped for name in MODULE_FORMATS if name.startswith("Q")},
    "QZ": modules.wide_zero,
    "NVFP4M": partial(modules.nvfp4, divides=False),
    "NVFP4D": partial(modules.nvfp4, divides=True),
}
"""Bytes of whole blocks [blocks, bytes of a block] -> their integers and scales."""
