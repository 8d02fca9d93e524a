"""NVFP4 as compressed-tensors has it: e2m1, an e4m3 scale for each 16 of a row, and a divisor of
these for the whole matrix, which is 448 * 6 over the largest weight of it.

Matrices that read the same rows (q, k and v; gate and up) share their divisor, so that who makes
one matrix of them has one number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvasir.formats.modules import E4M3_VALUES
from kvasir.formats.types import TensorInfo
from kvasir.quantize.compressed import F8_MAX, compressed_config, e4m3_codes, module_of
from kvasir.quantize.e2m1 import E2M1_VALUES, e2m1_sizes, pairs, signed
from kvasir.quantize.filling import runs_of
from kvasir.quantize.folds import Fold
from kvasir.quantize.target import (
    AnyRows,
    MadeTensor,
    Matrix,
    RowMethod,
    Scheme,
)

_GROUP = 16
_MOST = E2M1_VALUES[-1]
_TINY = np.finfo(np.float32).tiny


class Nvfp4Rows(AnyRows, frozen=True):
    """``nvfp4-pack-quantized``; ``divisor``: of the matrix that is encoded."""

    divisor: float = 1.0
    format: str = "nvfp4-pack-quantized"
    name: str = "NVFP4"

    @property
    def weights(self) -> Scheme:
        said = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
        more = {"strategy": "tensor_group", "group_size": _GROUP}
        kinds = dict.fromkeys(("scale_dtype", "zp_dtype"), "torch.float8_e4m3fn")
        return {**said, **more, **kinds}

    def config(self, kept: Sequence[str]) -> Scheme:
        return compressed_config(self.format, self.weights, None, kept)

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        n, k = shape
        module, groups = module_of(tensor), k // _GROUP
        return (
            MadeTensor(f"{module}.weight_packed", "U8", (n, k // 2), n * k // 2),
            MadeTensor(f"{module}.weight_scale", "F8_E4M3", (n, groups), n * groups),
            MadeTensor(f"{module}.weight_global_scale", "F32", (1,), 4),
        )

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        """The divisor is what ``Nvfp4Tensor`` adds."""
        runs, divisor = rows.reshape(-1, _GROUP), np.float32(self.divisor)
        scales = e4m3_codes(divisor * (np.abs(runs).max(axis=1, keepdims=True) / _MOST))
        scales = np.maximum(scales, np.uint8(1))  # the least, for what would be cut to nothing
        codes = e2m1_sizes(np.abs(runs) / (E4M3_VALUES[scales] / divisor))
        return pairs(signed(codes, runs)).tobytes(), scales.tobytes()


class Nvfp4Matrices:
    """The matrices of a model."""

    def __init__(self, infos: Sequence[TensorInfo], folds: Sequence[Fold]) -> None:
        """``folds``: whose readers share a divisor."""
        self._infos: Mapping[str, TensorInfo] = {x.name: x for x in infos}
        self._sharing = {name: fold.readers for fold in folds for name in fold.readers}
        self._peaks: dict[str, np.float32] = {}

    def of(self, info: TensorInfo) -> RowMethod | None:
        """None for tensors that stay as they are."""
        return Nvfp4Tensor(self, info.name) if info.name in self._infos else None

    def divisor(self, tensor: str) -> float:
        peak = max(self._peak(x) for x in self._sharing.get(tensor, (tensor,)))
        found = np.float32(1) / np.maximum(peak, _TINY) * (F8_MAX * _MOST)  # as torch divides
        return float(found) if np.isfinite(found) else 1.0

    def _peak(self, tensor: str) -> np.float32:
        """Of its sizes. Raises ModelError for numbers that are not finite."""
        if tensor not in self._peaks:
            runs = runs_of(self._infos[tensor])
            self._peaks[tensor] = max(np.abs(rows).max() for rows in runs)
        return self._peaks[tensor]


class Nvfp4Tensor:
    """The row method of one matrix, whose largest weight is looked for before its first rows."""

    name = "NVFP4"

    def __init__(self, matrices: Nvfp4Matrices, tensor: str) -> None:
        self._matrices, self._tensor = matrices, tensor
        self._rows, self._divisor = Nvfp4Rows(), b""

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        return self._rows.targets(tensor, shape)

    def begin(self) -> None:
        self._rows = Nvfp4Rows(self._matrices.divisor(self._tensor))
        self._divisor = np.float32(self._rows.divisor).tobytes()

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        divisor, self._divisor = self._divisor, b""  # once
        return (*self._rows.encode(rows), divisor)

    def end(self) -> None:
        return
