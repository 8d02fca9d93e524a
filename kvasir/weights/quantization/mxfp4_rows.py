"""MXFP4 of checkpoints as GGUF has it, whose blocks have the first half of their codes low."""

from __future__ import annotations

import numpy as np

from kvasir.core.errors import ModelError
from kvasir.formats.decode import bytes_of
from kvasir.formats.modules import nibbles
from kvasir.weights.quantization.mxfp4 import Mxfp4Module

_NAN = 255
"""Of e8m0."""


def mxfp4_rows(module: Mxfp4Module) -> memoryview:
    """Raises ModelError for a scale that stands for NaN."""
    scales = bytes_of(module.scales)
    if (scales == _NAN).any():
        raise ModelError(f"tensor '{module.scales.name}' holds scales that are not finite")
    codes = nibbles(bytes_of(module.codes).reshape(len(scales), 16))
    blocks = np.empty((len(scales), 17), np.uint8)
    blocks[:, 0] = scales
    blocks[:, 1:] = codes[:, :16] | codes[:, 16:] << np.uint8(4)
    return blocks.reshape(-1).data
