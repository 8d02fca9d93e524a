"""Random blocks of every format: any bits are a valid block, but for scales that are not finite."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from kvasir.formats.decode import decode
from kvasir.formats.modules import FP4B_VALUES, NF4_VALUES
from kvasir.formats.types import FORMATS, MODULE_FORMATS
from tests.kv_codes import from_bf16, to_bf16

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
    if name in MODULE_FORMATS:
        _make_module_blocks(name, rows, top)
    return rows.reshape(-1)


_OF_ROWS = ("Q4C", "Q8C", "NVFP4M", "NVFP4D", "F8C")
"""Formats whose blocks of a row share what stands before their codes."""


def _make_module_blocks(name: str, rows: NDArray[np.uint8], top: int) -> None:
    """Scales of 11 bits, from 2^-11 to 2^-3, zeros and codes that the format has."""
    rows[:, 0] = 0
    rows[:, 1] &= 0xE0
    rows[:, 3] = rows[:, 3] & 0x80 | (0x3A + top // 16)
    if name.startswith("NVFP4"):
        rows[:, 3] = 0x44 if name == "NVFP4D" else rows[:, 3] & 0x7F  # divided by: hundreds
        rows[:, 4:6] &= 0x77  # neither a sign nor NaN
    if name.startswith("Q"):
        bits = {"QS": 4, "QZ": 8, "Q4C": 4, "Q8C": 8}.get(name) or int(name[2])
        rows[:, 5:] &= (1 << bits) - 1
        if bits < 8:
            rows[:, 4] %= (1 << bits) + 1
        elif name != "QZ":
            rows[:, 4] = 128
    if name in _OF_ROWS:
        head = 5 if name.startswith("Q") else 4
        rows[:, :head] = rows[0, :head]


def packed_values(name: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What kernels make of blocks: the decoder's values, but for levels rounded to bf16."""
    levels = {"NF4": NF4_VALUES, "FP4": FP4B_VALUES}.get(name)
    if levels is None:
        return decode(name, data)
    blocks = data.reshape(-1, FORMATS[name].block_bytes)
    codes = np.stack([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=-1).reshape(len(blocks), -1)
    scales = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return (from_bf16(to_bf16(levels))[codes] * scales).astype(np.float32).reshape(-1)
