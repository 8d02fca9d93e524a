"""Blocks of random bytes through the compact layouts: on every level the decoder's values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir import _native
from kvasir.exec.cpu.codes import LAYOUT_CODES
from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT
from kvasir.exec.cpu.weights import PackTarget, pack_rows
from kvasir.formats.decode import decode
from kvasir.formats.types import FORMATS, MODULE_FORMATS
from tests.format_blocks import random_blocks

FIRST = LAYOUT_CODES["q2k"]
LAST = LAYOUT_CODES["nvfp4d"]
COMPACT = [name for name, used in LAYOUT_OF_FORMAT.items() if FIRST <= LAYOUT_CODES[used] <= LAST]


def middle_of(name: str) -> slice:
    """Bytes of a block that may have any value."""
    form = FORMATS[name]
    if name in MODULE_FORMATS:
        return slice(6 if name.startswith("NVFP4") else 5, None)
    return slice(4, form.block_bytes - 8) if form.block == 256 else slice(1, None)


def mask_of(name: str) -> int:
    """Of a code in a byte of its own."""
    return (1 << int(name[2])) - 1 if name.startswith("QG") else 15 if name == "Q4C" else 255


@pytest.mark.parametrize("name", COMPACT)
@settings(max_examples=8, deadline=None)
@given(
    n=st.integers(1, 35),
    blocks=st.integers(1, 3),
    seed=st.integers(0, 1 << 20),
    top=st.sampled_from((0x00, 0x04, 0x20, 0x78)),
    same=st.one_of(st.none(), st.integers(0, 255)),
)
def test_values_survive(
    name: str, n: int, blocks: int, seed: int, top: int, same: int | None
) -> None:
    """Scales from denormal to the largest; now and then all bytes but the scales alike."""
    form = FORMATS[name]
    k = form.block * blocks
    raw = random_blocks(name, n * blocks, seed, top)
    if same is not None:
        rows = raw.reshape(-1, form.block_bytes)
        rows[:, middle_of(name)] = same & mask_of(name)
    code = LAYOUT_CODES[LAYOUT_OF_FORMAT[name]]
    tiles = np.zeros(-(-n // 16) * _native.tile_bytes(code, k), np.uint8)
    target = PackTarget(_native.Pool(1), LAYOUT_OF_FORMAT[name], k, tiles, 0, 1)
    pack_rows(target, name, raw.reshape(n, -1))
    expected, ids = decode(name, raw).reshape(n, k), np.arange(n, dtype=np.int32)
    for level in _native.levels():
        values = np.full((n, k), np.nan, np.float32)
        _native.Kernels(level).embed(code, tiles, ids, 1.0, values, 0, n)
        assert np.array_equal(values, expected), level
