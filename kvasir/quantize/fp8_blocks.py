"""e4m3 with a scale for each 128 x 128 of a matrix, as DeepSeek and Qwen publish it (``fp8``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvasir.quantize.compressed import F8_MAX, e4m3_codes, module_of
from kvasir.quantize.target import AnyRows, MadeTensor, Matrix, Scheme, finite_scales

SIDE = 128


class Fp8Blocks(AnyRows, frozen=True):
    """scale = max|w| / 448; blocks at the ends may have fewer rows and columns."""

    format: str = "fp8"
    name: str = "e4m3, a scale for each 128 x 128"

    def config(self, kept: Sequence[str]) -> Scheme:
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [SIDE, SIDE],
            "modules_to_not_convert": list(kept),
        }

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        n, k = shape
        down, across = -(-n // SIDE), -(-k // SIDE)
        scales = f"{module_of(tensor)}.weight_scale_inv"
        return (
            MadeTensor(tensor, "F8_E4M3", (n, k), n * k),
            MadeTensor(scales, "F32", (down, across), 4 * down * across),
        )

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        """``rows``: a multiple of 128 of them, or the last."""
        n, k = rows.shape
        wide = np.pad(np.abs(rows), ((0, -n % SIDE), (0, -k % SIDE)))
        peaks = wide.reshape(-(-n // SIDE), SIDE, -1, SIDE).max(axis=(1, 3))
        scales = finite_scales(peaks / F8_MAX)
        each = np.repeat(np.repeat(scales, SIDE, axis=0)[:n], SIDE, axis=1)[:, :k]
        return e4m3_codes(rows / each).tobytes(), scales.astype("<f4").tobytes()
