"""Named steps from a file's tensor to a weight; row steps move packed rows, without loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
import numpy as np
from msgspec.structs import replace

from kvasir.core.errors import ModelError
from kvasir.formats.decode import Bytes, Floats, decode
from kvasir.formats.types import FORMATS
from kvasir.ir.program import Transform


class RawTensor(msgspec.Struct, frozen=True):
    """Stored elements: ``data`` 1-D bytes of ``shape`` (last axis along a row) in ``format``."""

    format: str
    shape: tuple[int, ...]
    data: Bytes

    def decode(self) -> Floats:
        """f32 of ``shape``."""
        return decode(self.format, self.data).reshape(self.shape)

    def rows(self) -> Bytes:
        """Bytes [all rows, bytes of a row]."""
        n = int(np.prod(self.shape[:-1]))
        return self.data.reshape(n, FORMATS[self.format].n_bytes(self.shape[-1:]))


def permute_rope(tensor: RawTensor, n_heads: int) -> RawTensor:
    """Rows of each head from (pair, half), for interleaved rope, to (half, pair), for neox."""
    n = tensor.shape[0]
    order = np.arange(n).reshape(n_heads, n // n_heads // 2, 2).swapaxes(1, 2).reshape(-1)
    return replace(tensor, data=np.ascontiguousarray(_items(tensor)[order]).reshape(-1))


def part(tensor: RawTensor, start: int, n: int, whole: int) -> RawTensor:
    """Rows ``start`` … of the ``whole`` of a fused tensor, or elements of its bias; a view."""
    data = _items(tensor)[start : start + n].reshape(-1)
    return replace(tensor, shape=(n, *tensor.shape[1:]), data=data)


def column_part(tensor: RawTensor, start: int, n: int, whole: int) -> RawTensor:
    """``part`` of a matrix that has its outputs as columns."""
    return part(transposed(tensor), start, n, whole)


def group_part(tensor: RawTensor, index: int, n_heads: int, n_kv_heads: int, dim: int) -> RawTensor:
    """Queries, keys or values (0, 1, 2) of a fused tensor in which each key stands behind its
    queries, and its value behind it."""
    order = np.arange((n_heads + 2 * n_kv_heads) * dim).reshape(n_kv_heads, -1, dim)
    rows = (order[:, :-2], order[:, -2], order[:, -1])[index].reshape(-1)
    data = np.ascontiguousarray(_items(tensor)[rows]).reshape(-1)
    return replace(tensor, shape=(len(rows), *tensor.shape[1:]), data=data)


def delta_rows(tensor: RawTensor, which: int, n_groups: int, n: int, m: int) -> RawTensor:
    """Of a matrix that has q, k, v and gates of each group, ``n``, ``n``, ``m`` and ``m`` rows: all
    q, then all k, then all v (0), or all gates (1)."""
    order = np.arange(n_groups * 2 * (n + m)).reshape(n_groups, -1)
    parts = np.split(order, np.cumsum([n, n, m]), axis=1)
    chosen = parts[3:] if which else parts[:3]
    rows = np.concatenate([part.reshape(-1) for part in chosen])
    data = np.ascontiguousarray(tensor.rows()[rows]).reshape(-1)
    return replace(tensor, shape=(len(rows), *tensor.shape[1:]), data=data)


def head_rows(tensor: RawTensor, start: int, n: int, whole: int) -> RawTensor:
    """Rows ``start`` … of the ``whole`` of each head."""
    heads = tensor.shape[0] // whole
    rows = tensor.rows().reshape(heads, whole, -1)[:, start : start + n]
    data = np.ascontiguousarray(rows).reshape(-1)
    return replace(tensor, shape=(heads * n, *tensor.shape[1:]), data=data)


def head_values(tensor: RawTensor, start: int, n: int, whole: int) -> RawTensor:
    """The same as a matrix [n, K] of each head."""
    found = head_rows(tensor, start, n, whole)
    return replace(found, shape=(found.shape[0] // n, n, found.shape[1]))


def head_keys(tensor: RawTensor, start: int, n: int, whole: int) -> RawTensor:
    """Those transposed, [K, n] of each head, as F32: rows of blocks have no columns."""
    values = head_values(tensor, start, n, whole).decode()
    return from_floats(np.ascontiguousarray(values.swapaxes(1, 2)))


def transposed(tensor: RawTensor) -> RawTensor:
    """Columns as rows; a vector stays as it is. Raises ModelError where columns share blocks."""
    if len(tensor.shape) == 1:
        return tensor
    if FORMATS[tensor.format].block > 1:
        raise ModelError(f"a matrix stored as {tensor.format} cannot be transposed without loss")
    return inputs_last(tensor)


def _items(tensor: RawTensor) -> Bytes:
    """Bytes of each row, or of each element of a vector."""
    if len(tensor.shape) > 1:
        return tensor.rows()
    return tensor.data.reshape(len(tensor.data) // FORMATS[tensor.format].n_bytes((1,)), -1)


def plus_one(tensor: RawTensor) -> RawTensor:
    """1 + weight, as F32."""
    return from_floats(tensor.decode() + np.float32(1.0))


def times(tensor: RawTensor, factor: float) -> RawTensor:
    """Every number times ``factor``, as F32."""
    return from_floats(tensor.decode() * np.float32(factor))


def minus_exp(tensor: RawTensor) -> RawTensor:
    """-e^weight, as F32."""
    return from_floats(-np.exp(tensor.decode()))


def flat(tensor: RawTensor, n: int) -> RawTensor:
    """All elements of ``n`` rows as a vector."""
    return replace(tensor, shape=(int(np.prod(tensor.shape)),))


def first_half(tensor: RawTensor) -> RawTensor:
    """The first half of the rows; of the rows of each matrix, where there are several."""
    return _half(tensor, 0)


def second_half(tensor: RawTensor) -> RawTensor:
    """What ``first_half`` leaves."""
    return _half(tensor, 1)


def _half(tensor: RawTensor, which: int) -> RawTensor:
    *matrices, n, k = tensor.shape
    halves = tensor.data.reshape(int(np.prod(matrices)), 2, -1)
    data = np.ascontiguousarray(halves[:, which]).reshape(-1)
    return RawTensor(tensor.format, (*matrices, n // 2, k), data)


def joined(tensor: RawTensor, n: int) -> RawTensor:
    """``n`` matrices or kernels one below the other."""
    return replace(tensor, shape=(n * tensor.shape[1], *tensor.shape[2:]))


def inputs_last(tensor: RawTensor) -> RawTensor:
    """Matrices that lie input by output, with their axes swapped. Rows of blocks are of outputs
    whatever the axes say."""
    *matrices, k, n = tensor.shape
    if FORMATS[tensor.format].block > 1:
        return replace(tensor, shape=(*matrices, n, k))
    data = np.ascontiguousarray(_elements(tensor).swapaxes(-3, -2)).reshape(-1)
    return RawTensor(tensor.format, (*matrices, n, k), data)


def even_outputs(tensor: RawTensor) -> RawTensor:
    """Every other output from the first on, of matrices [E, K, 2N] that lie input by output, or of
    biases [E, 2N]."""
    return _every_other(tensor, 0)


def odd_outputs(tensor: RawTensor) -> RawTensor:
    """What ``even_outputs`` leaves."""
    return _every_other(tensor, 1)


def _every_other(tensor: RawTensor, first: int) -> RawTensor:
    if FORMATS[tensor.format].block > 1:  # of blocks are rows, whatever the axes say
        experts, k, n = tensor.shape
        data = np.ascontiguousarray(_block_rows(tensor)[:, first::2]).reshape(-1)
        return RawTensor(tensor.format, (experts, n // 2, k), data)
    data = np.ascontiguousarray(_elements(tensor)[..., first::2, :]).reshape(-1)
    found = RawTensor(tensor.format, (*tensor.shape[:-1], tensor.shape[-1] // 2), data)
    return found if len(found.shape) == 2 else inputs_last(found)


def _block_rows(tensor: RawTensor) -> Bytes:
    """Bytes [experts, outputs, bytes of a row] of blocks, of axes [experts, inputs, outputs]."""
    experts, k, n = tensor.shape
    return tensor.data.reshape(experts, n, FORMATS[tensor.format].n_bytes((k,)))


MOVES_COLUMNS = ("places_first", "padded_columns")
"""Steps behind which a matrix of blocks is F32: its columns share scales."""


def _single(tensor: RawTensor) -> RawTensor:
    """As F32 where it is of blocks."""
    is_single = FORMATS[tensor.format].block == 1
    return tensor if is_single else from_floats(tensor.decode())


def _elements(tensor: RawTensor) -> Bytes:
    """Bytes [..., bytes of an element]."""
    return tensor.data.reshape(*tensor.shape, FORMATS[tensor.format].n_bytes((1,)))


def taps(tensor: RawTensor) -> RawTensor:
    """Taps of channels [channels, taps] as those of all channels, one after the other, as F32."""
    return from_floats(tensor.decode().reshape(tensor.shape[0], tensor.shape[-1]).T)


def scaled_parts(tensor: RawTensor, n: int, m: int, x: float, b: float, c: float) -> RawTensor:
    """The first ``n`` columns times ``x``, the next ``m`` times ``b``, ``m`` more times ``c``."""
    factors = np.repeat(np.array([x, b, c], np.float32), [n, m, m])
    return from_floats(tensor.decode() * factors)


def from_floats(values: Floats) -> RawTensor:
    return RawTensor(
        "F32", values.shape, np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1)
    )


def repeated(tensor: RawTensor, n: int) -> RawTensor:
    """One number ``n`` times, as F32."""
    return from_floats(np.repeat(tensor.decode().reshape(-1)[:1], n))


def patch_rows(tensor: RawTensor, *sizes: int) -> RawTensor:
    """The kernel of a convolution over patches [outputs, channels, patch, patch] as a matrix; or
    over those of several frames [outputs, channels, frames, patch, patch]."""
    return replace(tensor, shape=(tensor.shape[0], int(np.prod(tensor.shape[1:]))))


def places_first(tensor: RawTensor, n: int) -> RawTensor:
    """Columns that lie channel by channel, ``n`` places of each, as those of all channels, place by
    place; blocks become F32."""
    tensor = _single(tensor)
    items = _elements(tensor).reshape(tensor.shape[0], tensor.shape[1] // n, n, -1)
    return replace(tensor, data=np.ascontiguousarray(items.swapaxes(1, 2)).reshape(-1))


def frame_rows(tensor: RawTensor, frames: int, patch: int) -> RawTensor:
    """Kernels over patches of frames [frames, outputs, channels, patch, patch] as one matrix, of
    single elements, whose columns have all frames of a channel behind one another."""
    items = _elements(tensor).reshape(*tensor.shape[:3], -1).transpose(1, 2, 0, 3)
    shape = (tensor.shape[1], int(np.prod(tensor.shape)) // tensor.shape[1])
    return replace(tensor, shape=shape, data=np.ascontiguousarray(items).reshape(-1))


def padded_heads(tensor: RawTensor, n_heads: int, n: int, padded: int) -> RawTensor:
    """Zeros behind the ``n`` rows of each head, or elements of its bias: ``padded`` in all."""
    items = _items(tensor).reshape(n_heads, n, -1)
    shape = (n_heads * padded, *tensor.shape[1:])
    return replace(tensor, shape=shape, data=_zeros_behind(items, padded))


def padded_columns(tensor: RawTensor, n_heads: int, n: int, padded: int) -> RawTensor:
    """The same of columns; blocks become F32."""
    tensor = _single(tensor)
    items = _elements(tensor).reshape(tensor.shape[0] * n_heads, n, -1)
    shape = (tensor.shape[0], n_heads * padded)
    return replace(tensor, shape=shape, data=_zeros_behind(items, padded))


def _zeros_behind(items: Bytes, n: int) -> Bytes:
    """Bytes of ``items`` [parts, items, bytes] with as many of 0 as make ``n`` items of each."""
    missing = n - items.shape[1]
    return np.pad(items, ((0, 0), (0, missing), (0, 0))).reshape(-1)


def lines_first(tensor: RawTensor, n_heads: int) -> RawTensor:
    """Rows of each head, or elements of its norm, from (column or line, half) to (half, line or
    column): rope turns each half with the other."""
    items = _items(tensor)
    order = np.arange(len(items)).reshape(n_heads, 2, 2, -1)[:, ::-1].swapaxes(1, 2).reshape(-1)
    return replace(tensor, data=np.ascontiguousarray(items[order]).reshape(-1))


QKV = (
    *("q_of_qkv", "k_of_qkv", "v_of_qkv"),
    *("q_of_columns", "k_of_columns", "v_of_columns"),
)
"""Parts of a tensor that holds q, k and v, one below the other, or one beside the other."""
SCAN_ROWS = ("scan_gate_rows", "scan_in_rows", "scan_step_rows")
"""Parts of a tensor that holds what a scan is gated with, what it reads, and its steps."""
DELTA_ROWS = ("delta_in", "delta_gate")
"""Parts of a tensor that holds what a delta net reads, and is gated with, group by group."""
HALVES_OF_HEADS = ("first_of_heads", "second_of_heads")
"""Of a tensor that holds two matrices head by head, or group by group."""
MATRICES = ("first_matrix", "second_matrix", "third_matrix")
"""Each of several that are one tensor."""
GROUPED_QKV = ("q_of_groups", "k_of_groups", "v_of_groups")
"""Parts of one that holds them group by group."""
TRANSFORMS: Mapping[str, Callable[..., RawTensor]] = MappingProxyType(
    {
        "permute_rope": permute_rope,
        "lines_first": lines_first,
        "plus_one": plus_one,
        "times": times,
        "minus_exp": minus_exp,
        "flat": flat,
        "column": lambda tensor: flat(tensor, tensor.shape[0]),
        "first_half": first_half,
        "second_half": second_half,
        "joined": joined,
        "inputs_last": inputs_last,
        "even_outputs": even_outputs,
        "odd_outputs": odd_outputs,
        "transposed": transposed,
        "head_first": head_rows,
        "head_last": head_rows,
        "head_keys": head_keys,
        "head_values": head_values,
        "last_rows": part,
        "conv_taps": taps,
        "taps": taps,
        "repeated": repeated,
        "scaled_parts": scaled_parts,
        "patch_rows": patch_rows,
        "cube_rows": patch_rows,
        "frame_rows": frame_rows,
        "places_first": places_first,
        "padded_heads": padded_heads,
        "padded_columns": padded_columns,
        **dict.fromkeys(QKV[:3], part),
        **dict.fromkeys(QKV[3:], column_part),
        **dict.fromkeys(SCAN_ROWS, part),
        **dict.fromkeys(DELTA_ROWS, delta_rows),
        **dict.fromkeys(HALVES_OF_HEADS, head_rows),
        **dict.fromkeys(GROUPED_QKV, group_part),
        **dict.fromkeys(
            MATRICES,
            lambda x, i, n: RawTensor(x.format, x.shape[1:], x.data.reshape(n, -1)[i]),
        ),
    }
)


def apply(tensor: RawTensor, transforms: tuple[Transform, ...]) -> RawTensor:
    """All steps in order. Raises KeyError on an unknown name."""
    for transform in transforms:
        tensor = TRANSFORMS[transform.name](tensor, *transform.args)
    return tensor
