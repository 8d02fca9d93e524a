"""Four-bit levels of bitsandbytes as rows of blocks (``formats/modules.py``)."""

from __future__ import annotations

import numpy as np

from kvasir.core.errors import ModelError
from kvasir.formats.decode import Floats, bytes_of, values_of
from kvasir.formats.modules import FP4B_VALUES, NF4_VALUES
from kvasir.weights.quantization.bitsandbytes import BLOCK, T4Module
from kvasir.weights.quantization.integer_rows import finite

_NEAR = 1e-6


def t4_rows(module: T4Module) -> memoryview:
    """Raises ModelError for other levels than the format has, or scales that are not finite."""
    known = NF4_VALUES if module.format == "NF4" else FP4B_VALUES
    if not np.abs(values_of(module.levels) - known).max() <= _NEAR:
        raise ModelError(
            f"tensor '{module.levels.name}' holds other levels than {module.format}'s: quantize "
            "the model with those of bitsandbytes"
        )
    codes = bytes_of(module.codes).reshape(-1, BLOCK // 2)
    blocks = np.empty((len(codes), 4 + BLOCK // 2), np.uint8)
    blocks[:, :4] = absmax_of(module).astype("<f4").view(np.uint8).reshape(-1, 4)
    blocks[:, 4:] = codes >> np.uint8(4) | codes << np.uint8(4)
    return blocks.reshape(-1).data


def absmax_of(module: T4Module) -> Floats:
    """f32 [blocks], as bitsandbytes computes it: a product, then a sum."""
    if module.nested is None:
        return finite(module.absmax)
    levels, steps = (finite(tensor) for tensor in module.nested)
    codes = bytes_of(module.absmax)
    of_code = np.arange(len(codes)) // module.nested_block
    return levels[codes] * steps[of_code] + np.float32(module.offset)
