"""Formats that modules of quantized checkpoints become: blocks of one f32 scale and codes.

No file has them: ``weights/quantization`` brings what GPTQ, AWQ, compressed-tensors and others have
to such rows, every code, scale and zero as it was. A row lies whole, so that rows can be moved.
"""

from __future__ import annotations

import numpy as np

from kvasir.formats.simple import FP4_VALUES
from kvasir.formats.split import Bytes, Floats, Split, words

NF4_VALUES = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""Of NF4 (QLoRA, arXiv:2305.14314, appendix E); kernels round them once, to bf16."""
_FP4B = [0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3]
FP4B_VALUES = np.array(_FP4B, np.float32) / np.float32(12)
"""Of FP4 as bitsandbytes has it: e2m1 with other codes, the largest 1."""


def e4m3_values() -> Floats:
    """Of all 256 bytes. The two that stand for NaN (0x7f and 0xff) go on with the numbers, as the
    kernels read them: who reads files refuses them."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    normal = (8.0 + fraction) * 2.0 ** (exponent - 10.0)
    value = np.where(exponent > 0, normal, fraction * 2.0**-9)
    return np.where(code < 128, value, -value).astype(np.float32)


E4M3_VALUES = e4m3_values()


def grouped(rows: Bytes) -> Split:
    """value = scale * (code - zero): 4 bytes of scale, the zero, a byte for each code."""
    return Split((rows[:, 5:] - rows[:, 4:5]).view(np.int8), scale_of(rows))


def wide_zero(rows: Bytes) -> Split:
    """The same of codes of 8 bits with any zero, whose difference may need nine."""
    scales = scale_of(rows)
    shift = np.float32(128) - rows[:, 4:5].astype(np.float32)
    return Split((rows[:, 5:] ^ np.uint8(128)).view(np.int8), scales, scales * shift)


def nvfp4(rows: Bytes, divides: bool) -> Split:
    """4 bytes of a factor, two e4m3 scales, and codes of e2m1, the even elements low."""
    factor, steps = scale_of(rows), E4M3_VALUES[rows[:, 4:6]]
    codes = nibbles(rows[:, 6:])
    return Split(FP4_VALUES[codes], steps / factor if divides else steps * factor)


def f8(rows: Bytes) -> Floats:
    """4 bytes of scale, codes of e4m3."""
    return E4M3_VALUES[rows[:, 4:]] * scale_of(rows)


def four_bits(levels: Floats, rows: Bytes) -> Floats:
    """4 bytes of scale, codes of 16 levels, the even elements low."""
    return levels[nibbles(rows[:, 4:])] * scale_of(rows)


def scale_of(rows: Bytes) -> Floats:
    """f32 [blocks, 1] of the first four bytes of each."""
    return np.asarray(words(rows[:, :4], "<f4"), np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """[n, b] -> [n, 2 b], the lower first."""
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(
        len(packed), -1
    )
