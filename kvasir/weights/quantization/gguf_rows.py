"""Blocks of GGUF's newest types as those of modules (``formats/modules.py``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from kvasir.core.errors import ModelError
from kvasir.formats.decode import Bytes, Floats, bytes_of
from kvasir.formats.split import bits_of, half
from kvasir.formats.types import BESIDE_FORMATS
from kvasir.weights.quantization.gguf_blocks import GgufModule
from kvasir.weights.quantization.integer_rows import finite

_LARGEST_STEP = 0x7E
"""Of e4m3 without a sign; the next is NaN."""


def gguf_rows(module: GgufModule) -> memoryview:
    """Raises ModelError for scales that no weight has."""
    info = module.blocks
    blocks = bytes_of(info).reshape(-1, BESIDE_FORMATS[info.format].block_bytes)
    if info.format == "NVFP4":
        return _nvfp4(blocks, module).reshape(-1).data
    scales = half(blocks[:, :2])
    if not np.isfinite(scales).all():
        raise ModelError(f"tensor '{info.name}' holds scales that are not finite")
    codes = _CODES[info.format](blocks[:, 2:])
    head = scales.astype("<f4").view(np.uint8)
    zeros = np.ones((len(blocks), 1), np.uint8)
    return np.concatenate([head, zeros, codes], axis=1).reshape(-1).data


def _nvfp4(blocks: Bytes, module: GgufModule) -> Bytes:
    """Of 64 elements: four scales; of each 16 elements the first eight low, the others high."""
    steps = blocks[:, :4]
    if (steps > _LARGEST_STEP).any():
        raise ModelError(f"tensor '{module.blocks.name}' holds scales below 0, or of NaN")
    packed = blocks[:, 4:].reshape(-1, 4, 8)
    codes = np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=2).reshape(-1, 32)
    factors = np.repeat(_factors(module), len(codes) // len(_factors(module)))
    rows = np.empty((len(codes), 22), np.uint8)
    rows[:, :4] = factors.astype("<f4").view(np.uint8).reshape(-1, 4)
    rows[:, 4:6] = steps.reshape(-1, 2)
    rows[:, 6:] = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    return rows


def _factors(module: GgufModule) -> Floats:
    """Half of them: codes stand for twice their values."""
    if module.factor is None:
        return np.full(1, 0.5, np.float32)
    return finite(module.factor).reshape(-1) * np.float32(0.5)


_CODES: Mapping[str, Callable[[Bytes], Bytes]] = {
    "Q1_0": lambda packed: bits_of(packed) << np.uint8(1),
    "Q2_0": lambda packed: (
        (packed[..., None] >> np.arange(0, 8, 2, dtype=np.uint8)) & np.uint8(3)
    ).reshape(len(packed), -1),
}
"""Codes whose zero is 1: of a bit -1 or 1, of two bits -1 to 2."""
