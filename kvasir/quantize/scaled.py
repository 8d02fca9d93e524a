"""Files of a model whose inputs were scaled: what reads them is multiplied, what makes them is
divided."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvasir.core.errors import ModelError
from kvasir.formats.decode import values_of
from kvasir.formats.types import FORMATS, TensorInfo
from kvasir.quantize.folds import Fold
from kvasir.quantize.scaling import AwqGroups, SmoothInt8, chosen
from kvasir.quantize.statistics import Statistics, Vector
from kvasir.quantize.target import MadeTensor, Matrix, RowMethod

ScalingMethod = AwqGroups | SmoothInt8


class Scales(NamedTuple):
    """Of a fold."""

    columns: Vector
    """What its readers are multiplied by."""
    norm: Vector | None
    """Its norm's weights, as they are stored."""


class Scaled:
    """The tensors of a model, with scales that a text chose."""

    def __init__(
        self,
        method: ScalingMethod,
        tensors: Mapping[str, TensorInfo],
        quantized: Sequence[str],
        folds: Sequence[Fold],
        calibrate: Callable[[Sequence[str]], Statistics],
    ) -> None:
        """``tensors`` in the order in which they are written."""
        self._method, self._tensors, self._calibrate = method, tensors, calibrate
        self._order, self._quantized = quantized, frozenset(quantized)
        self._reading = {name: fold for fold in folds for name in fold.readers}
        self._giving = {name: fold for fold in folds for name in fold.givers}
        self._chosen: dict[str, Scales | None] = {}

    @cached_property
    def statistics(self) -> Statistics:
        """Made when it is asked for: when all else is known to be possible."""
        return self._calibrate(self._asked(self._tensors))

    @property
    def rounded(self) -> tuple[str, ...]:
        """Matrices whose inputs nothing scales."""
        found = {x: self._reading.get(x) for x in self._order}
        return tuple(
            x
            for x, fold in found.items()
            if fold is None or not self.statistics.knows(fold.readers[0])
        )

    def skip(self, done: Collection[str]) -> None:
        """Tensors that are written."""
        left = self._asked([x for x in self._tensors if x not in done])
        self.statistics.forget(set(self._asked(self._tensors)) - set(left))

    def _asked(self, tensors: Iterable[str]) -> tuple[str, ...]:
        """One matrix of each fold that those tensors are of, in their order."""
        touched = [y[x] for x in tensors for y in (self._reading, self._giving) if x in y]
        return tuple(dict.fromkeys(fold.readers[0] for fold in touched))

    def of(self, info: TensorInfo) -> RowMethod | None:
        """None for tensors that stay as they are."""
        is_quantized = info.name in self._quantized
        if not is_quantized and info.name not in self._giving:
            return None
        return ScaledTensor(self, info, self._method if is_quantized else Plain(info.format))

    def columns(self, tensor: str) -> Vector | None:
        fold = self._reading.get(tensor)
        scales = None if fold is None else self._scales(fold)
        return None if scales is None else scales.columns

    def rows(self, tensor: str) -> Vector | None:
        fold = self._giving.get(tensor)
        scales = None if fold is None else self._scales(fold)
        if fold is None or scales is None:
            return None
        if fold.heads is None:
            return scales.columns
        n_heads, size = fold.heads
        return scales.columns.reshape(-1, n_heads, size)[:, 0].reshape(-1)

    def norm(self, tensor: str) -> Vector | None:
        """Elements of a norm's weight, where it is one whose outputs are scaled."""
        fold = self._giving.get(tensor)
        is_weight = fold is not None and fold.is_norm and fold.givers[0] == tensor
        scales = self._scales(fold) if fold is not None and is_weight else None
        return None if scales is None else scales.norm

    def _scales(self, fold: Fold) -> Scales | None:
        if fold.value not in self._chosen:
            self._chosen[fold.value] = self._choose(fold)
        return self._chosen[fold.value]

    def _choose(self, fold: Fold) -> Scales | None:
        inputs = self.statistics.inputs(fold.readers[0])
        if inputs is None:
            return None
        matrices = [values_of(self._tensors[x]) for x in fold.readers]
        scales = chosen(self._method, inputs, matrices, fold.heads)
        if not fold.is_norm:
            return Scales(scales, None)
        info = self._tensors[fold.givers[0]]
        before = values_of(info) + np.float32(fold.offset)
        kept = Plain(info.format).nearest(before / scales - np.float32(fold.offset))
        after = kept + np.float32(fold.offset)
        is_known = (before != 0) & (after != 0)
        # what the norm gives is a multiple of what it gave, whatever its type rounds
        return Scales(np.divide(before, after, out=scales.copy(), where=is_known), kept)


class Plain(NamedTuple):
    """Numbers as they are."""

    format: str
    """F32, F16 or BF16."""

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        if self.format == "F32":
            return (rows.astype("<f4").tobytes(),)
        if self.format == "F16":
            return (rows.astype("<f2").tobytes(),)
        bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
        bits = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        return (bits.astype("<u2").tobytes(),)

    def nearest(self, values: Vector) -> Vector:
        """As the format has them. Raises ModelError for numbers beyond it."""
        data = self.encode(values)[0]
        if self.format == "BF16":
            found = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            found = np.frombuffer(data, "<f4" if self.format == "F32" else "<f2")
        if not np.isfinite(found).all():
            raise ModelError(f"a scaled norm has numbers beyond {self.format}: take --method rtn")
        return found.astype(np.float32)


class ScaledTensor:
    """The row method of one tensor, whose runs of rows come one after the other."""

    def __init__(self, scaled: Scaled, info: TensorInfo, method: ScalingMethod | Plain) -> None:
        self._scaled, self._info, self._method = scaled, info, method
        self._at = 0

    @property
    def name(self) -> str:
        return "scaled" if isinstance(self._method, Plain) else self._method.name

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        if not isinstance(self._method, Plain):
            return self._method.targets(tensor, shape)
        kind = self._info.format
        return (MadeTensor(tensor, kind, shape, FORMATS[kind].n_bytes(shape)),)

    def begin(self) -> None:
        self._at = 0

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        scaled, name = self._scaled, self._info.name
        norm, columns, divisors = (x(name) for x in (scaled.norm, scaled.columns, scaled.rows))
        if norm is not None:
            return self._method.encode(norm[None])
        if columns is not None:
            rows = rows * columns
        if divisors is not None:
            end = self._at + len(rows)
            is_vector = len(self._info.shape) == 1
            rows = rows / (divisors if is_vector else divisors[self._at : end, None])
            self._at = end
        return self._method.encode(rows)

    def end(self) -> None:
        return
