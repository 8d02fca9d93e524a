"""Small floats of modules as rows of blocks, as they were (``formats/modules.py``)."""

from __future__ import annotations

import numpy as np

from kvasir.core.errors import ModelError
from kvasir.formats.decode import Bytes, Floats, bytes_of
from kvasir.formats.types import FORMATS, TensorInfo
from kvasir.weights.quantization.floats import F8Module, Nvfp4Module
from kvasir.weights.quantization.integer_rows import finite

_NAN = 0x7F
"""Of e4m3, but for its sign."""


def f8_rows(module: F8Module) -> memoryview:
    """Raises ModelError for codes or scales that are not finite."""
    block, n, k = FORMATS[module.format].block, module.n, module.k
    codes = _numbers(module.codes).reshape(n, k // block, block)
    rows, columns = module.block
    scales = _scales(module.scales).reshape(-(-n // rows), -(-k // columns))
    of_block = np.arange(k // block) * block // columns
    spread = np.ascontiguousarray(scales[np.arange(n) // rows][:, of_block], "<f4")
    made = np.empty((n, k // block, 4 + block), np.uint8)
    made[..., :4] = spread.view(np.uint8).reshape(n, -1, 4)
    made[..., 4:] = codes
    return made.reshape(-1).data


def nvfp4_rows(module: Nvfp4Module) -> memoryview:
    """Raises ModelError for scales that are not finite, or negative."""
    n, k = module.n, module.k
    factor = finite(module.factor).reshape(-1)
    if not factor[0] > 0:
        raise ModelError(f"tensor '{module.factor.name}' is {factor[0]:g}, expected more than 0")
    # codes stand for twice their values: half a factor that multiplies, twice one that divides
    factor = factor * np.float32(2.0 if module.format == "NVFP4D" else 0.5)
    scales = _numbers(module.scales).reshape(n, k // 32, 2)
    if (scales > _NAN).any():
        raise ModelError(f"tensor '{module.scales.name}' holds scales below 0")
    made = np.empty((n, k // 32, 22), np.uint8)
    made[..., :4] = factor.astype("<f4").view(np.uint8)
    made[..., 4:6] = scales
    made[..., 6:] = bytes_of(module.codes).reshape(n, k // 32, 16)
    return made.reshape(-1).data


def _numbers(tensor: TensorInfo) -> Bytes:
    """Codes of e4m3. Raises ModelError where one stands for NaN."""
    codes = bytes_of(tensor)
    if (codes & _NAN == _NAN).any():
        raise ModelError(
            f"tensor '{tensor.name}' holds codes of NaN: the checkpoint is damaged, download it "
            "again or quantize it anew"
        )
    return codes


def _scales(tensor: TensorInfo) -> Floats:
    if tensor.format != "F8_E8M0":
        return finite(tensor)
    codes = bytes_of(tensor).astype(np.int32)
    if (codes == 255).any():
        raise ModelError(f"tensor '{tensor.name}' holds scales that are not finite")
    return np.ldexp(np.float32(1), codes - 127).astype(np.float32)
