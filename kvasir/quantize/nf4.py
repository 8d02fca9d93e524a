"""NF4 (QLoRA, arXiv:2305.14314) as bitsandbytes has it: the nearest of 16 levels times the largest
of each 64 of the flattened matrix."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from kvasir.formats.modules import NF4_VALUES
from kvasir.quantize.target import AnyRows, MadeTensor, Matrix, Scheme
from kvasir.weights.quantization.bitsandbytes import BLOCK

_MIDDLES = (NF4_VALUES[1:] + NF4_VALUES[:-1]) / np.float32(2)
_LEAST = np.float32(1e-38)
"""Of what is divided by: bitsandbytes'."""


class Nf4Rows(AnyRows, frozen=True):
    """Without double quantization: an f32 number for each block."""

    format: str = "bitsandbytes nf4"
    name: str = "NF4"

    @property
    def multiple(self) -> int:
        return BLOCK

    def config(self, kept: Sequence[str]) -> Scheme:
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": False,
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": list(kept),
        }

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        n, k = shape
        half, blocks = n * k // 2, n * k // BLOCK
        state = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": [n, k]}
        said, levels = json.dumps(state).encode(), NF4_VALUES.astype("<f4").tobytes()
        end = "quant_state.bitsandbytes__nf4"
        return (
            MadeTensor(tensor, "U8", (half, 1), half),
            MadeTensor(f"{tensor}.absmax", "F32", (blocks,), 4 * blocks),
            MadeTensor(f"{tensor}.quant_map", "F32", (16,), 64, levels),
            MadeTensor(f"{tensor}.{end}", "U8", (len(said),), len(said), said),
        )

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        blocks = rows.reshape(-1, BLOCK)
        peaks = np.abs(blocks).max(axis=1, keepdims=True)
        shares = (blocks * (np.float32(1) / np.maximum(peaks, _LEAST))).clip(-1, 1)
        codes = np.searchsorted(_MIDDLES, shares.reshape(-1)).astype(np.uint8).reshape(-1, 2)
        return (codes[:, 0] << 4 | codes[:, 1]).tobytes(), peaks.astype("<f4").tobytes()
