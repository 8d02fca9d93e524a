"""Random blocks of every format: any bits are a valid block, but for scales that are not finite."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from kvasir.formats.types import FORMATS

HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "IQ3_S": (0,), "IQ3_XXS": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ1_S": (0,),
    "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
"""Where the f16 scales and minimums of a block lie."""


def random_blocks(name: str, n: int, seed: int = 0, top: int = 0x20) -> NDArray[np.uint8]:
    """``n`` blocks (of 256 elements where the format has none); f16 numbers of 2^-7 to 2^-6.

    ``top``: exponent of those f16 numbers, the upper byte without its sign and low bits.
    The same bytes with every version of NumPy and Python.
    """
    form = FORMATS[name]
    size = form.block_bytes * (256 if form.block == 1 else 1)
    data = hashlib.shake_256(f"{name} {seed}".encode()).digest(n * size)
    rows = np.frombuffer(data, np.uint8).reshape(n, size).copy()
    if form.block == 1:
        # sign and exponent in the last byte: 0.5 to 2 in magnitude
        last = {"F32": 4, "BF16": 2, "F16": 2}[name]
        rows[:, last - 1 :: last] = rows[:, last - 1 :: last] & 0x83 | (
            0x38 if name == "F16" else 0x3C
        )
    for at in HALVES.get(name, ()):
        rows[:, at + 1] = rows[:, at + 1] & 0x83 | top
    if name == "IQ1_M":  # its f16 lies in the top nibbles of four words, highest last
        rows[:, 55] = rows[:, 55] & 0x8F | 0x20
        rows[:, 53] = rows[:, 53] & 0x3F
    if name == "MXFP4":
        rows[:, 0] = rows[:, 0] % 8 + 116
    return rows.reshape(-1)
