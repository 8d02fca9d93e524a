"""Integers of modules as rows of blocks, as they were; ``formats/modules.py`` has their values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import ModelError
from kvasir.formats.decode import Bytes, Floats, bytes_of, values_of
from kvasir.formats.types import FORMATS, TensorInfo
from kvasir.weights.quantization.integers import CodeWords, IntegerModule, Numbers

_HEAD = 5
"""Bytes of a block before its codes."""


def integer_rows(module: IntegerModule) -> memoryview:
    """Raises ModelError where scales are not finite."""
    block = FORMATS[module.format].block
    n_blocks = module.k // block
    group_of = np.arange(n_blocks) * block // module.group
    rows = np.empty((module.n, n_blocks, _HEAD + block), np.uint8)
    scales = scales_of(module.scales)[:, group_of]
    rows[..., :4] = np.ascontiguousarray(scales, "<f4").view(np.uint8).reshape(*scales.shape, 4)
    zeros = module.zeros
    rows[..., 4] = zeros if isinstance(zeros, int) else integers(zeros, module)[:, group_of]
    rows[..., _HEAD:] = codes_of(module).reshape(module.n, n_blocks, block)
    if module.feeds is not None:
        rows = rows[input_order(module.feeds)]
    return rows.reshape(-1).data


def codes_of(module: IntegerModule) -> Bytes:
    """u8 [n, k]."""
    if isinstance(module.codes, CodeWords):
        codes = integers(module.codes, module)[:, : module.k]
        return codes[:, input_order(module)] if module.g_idx else codes
    return bytes_of(module.codes).reshape(module.n, module.k) ^ np.uint8(128)


def input_order(module: IntegerModule) -> NDArray[np.int64]:
    """Inputs by their group, those of one in their order. Raises ModelError where groups have other
    sizes than the module's."""
    assert module.g_idx is not None
    groups = np.frombuffer(module.g_idx.data, "<i4")
    order = np.argsort(groups, kind="stable")
    if not np.array_equal(groups[order], np.arange(module.k) // module.group):
        raise ModelError(
            f"tensor '{module.g_idx.name}' does not name {module.group} inputs for each group: the "
            "checkpoint is damaged, download it again"
        )
    return order


def scales_of(numbers: Numbers) -> Floats:
    """f32 [outputs, groups]."""
    found = finite(numbers.tensor)
    found = found.reshape(found.shape[0] if found.ndim else 1, -1)
    if numbers.factor != 1.0:
        found = found * np.float32(numbers.factor)
    return found.T if numbers.by_input else found


def finite(tensor: TensorInfo) -> Floats:
    """Its values. Raises ModelError where one is NaN or infinite."""
    values = values_of(tensor)
    if not np.isfinite(values).all():
        raise ModelError(
            f"tensor '{tensor.name}' holds scales that are not finite: the checkpoint is damaged, "
            "download it again or quantize it anew"
        )
    return values


def integers(words: CodeWords, module: IntegerModule) -> Bytes:
    """u8 [outputs, inputs or groups]."""
    stored = np.frombuffer(words.tensor.data, "<u4").reshape(words.tensor.shape)
    rows = np.ascontiguousarray(stored.T if words.axis == 0 else stored)
    if words.less_one and words.bits != 3:
        rows = rows + np.uint32(sum(1 << i for i in range(0, 32, words.bits)))
    if words.more:
        rows = rows + np.resize(np.array(words.more, np.uint32), rows.shape[1])
    found = expanded(rows, words)
    if words.less_one and words.bits == 3 and not words.more:
        found = (found + np.uint8(1)) & np.uint8(7)
    if words.counts == "outputs":
        return found[:, : module.n].T
    return found


def expanded(rows: NDArray[np.uint32], words: CodeWords) -> Bytes:
    """CodeWords [m, w] as integers [m, n], u8."""
    data = rows.view(np.uint8).reshape(len(rows), -1)
    if words.bits == 8:
        return data
    if words.bits == 3:
        return _three_bits(data, words.is_dense)
    shifts = np.arange(0, 8, words.bits, dtype=np.uint8)
    found = (data[..., None] >> shifts) & np.uint8((1 << words.bits) - 1)
    found = found.reshape(len(rows), -1)
    if words.order:
        runs = found.reshape(len(rows), -1, len(words.order))
        return runs[..., np.argsort(words.order)].reshape(len(rows), -1)
    return found


def _three_bits(data: Bytes, is_dense: bool) -> Bytes:
    bits = np.unpackbits(data, axis=-1, bitorder="little")
    if is_dense:
        triples = bits[:, : bits.shape[1] // 3 * 3].reshape(len(data), -1, 3)
    else:
        triples = bits.reshape(len(data), -1, 32)[..., :30].reshape(len(data), -1, 3)
    return triples @ np.array([1, 2, 4], np.uint8)
