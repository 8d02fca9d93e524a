"""Weights of every format in their packed layouts: bit for bit the decoder's values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvasir import _native
from kvasir.exec.cpu import weights
from kvasir.exec.cpu.codes import LAYOUT_CODES
from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT, common_layout
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.exec.cpu.placement import placement
from kvasir.exec.cpu.weights import PackTarget, pack_rows
from kvasir.formats.decode import decode
from kvasir.formats.types import FORMATS, STORED
from tests import tiny
from tests.format_blocks import packed_values, random_blocks
from tests.loading import load

N, K = 37, 512
INTEGERS = [name for name, form in FORMATS.items() if form.has_integers]


def rows_of(format_name: str) -> np.ndarray:
    raw = random_blocks(format_name, N * K // max(FORMATS[format_name].block, 1))
    return raw[: N * FORMATS[format_name].n_bytes((K,))]


def unpacked(format_name: str, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """Values through the packed layout, and the decoder's."""
    raw = rows_of(format_name)
    code = LAYOUT_CODES[layout]
    out = np.zeros(-(-N // 16) * _native.tile_bytes(code, K), np.uint8)
    pack_rows(PackTarget(_native.Pool(1), layout, K, out, 0, 1), format_name, raw.reshape(N, -1))
    values = np.zeros((N, K), np.float32)
    ids = np.arange(N, dtype=np.int32)
    _native.Kernels("scalar").embed(code, out, ids, 1.0, values, 0, N)
    return values, packed_values(format_name, raw).reshape(N, K)


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SLICE", 16 * K)  # 37 rows in three slices
    values, expected = unpacked(name, LAYOUT_OF_FORMAT[name])
    assert np.array_equal(values, expected)


@pytest.mark.parametrize("name", INTEGERS)
def test_every_integer_format_widens(name: str) -> None:
    values, expected = unpacked(name, "q8m")
    assert np.array_equal(values, expected)


@pytest.mark.parametrize("name", FORMATS)
def test_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SLICE", 16 * K)
    values, _ = unpacked(name, "f32")
    assert np.array_equal(values, decode(name, rows_of(name)).reshape(N, K))


def test_floats_do_not_widen() -> None:
    with pytest.raises(ValueError, match="BF16 holds no integers"):
        unpacked("BF16", "q8s")


def test_table_is_the_native_one() -> None:
    assert LAYOUTS.keys() == LAYOUT_CODES.keys()
    for name, layout in LAYOUTS.items():
        bits = layout.bits * 256 + layout.row_bits
        assert _native.tile_bytes(LAYOUT_CODES[name], 256) * 8 == bits * 16
    for name, used in LAYOUT_OF_FORMAT.items():
        assert _native.packs(name, LAYOUT_CODES[used]) == (used not in ("q8s", "q8m"))
        assert not FORMATS[name].has_integers or not _native.packs(name, LAYOUT_CODES["q8m"])


def test_nothing_grows() -> None:
    """A tenth at most."""
    for name, form in STORED.items():
        stored = form.block_bytes * 8 / form.block
        assert LAYOUTS[LAYOUT_OF_FORMAT[name]].bits <= 1.1 * stored


def test_common_layouts() -> None:
    assert common_layout({"q4k"}) == "q4k"
    assert common_layout({"q4z", "q6k", "iq4"}) == "q8s"
    assert common_layout({"q4z", "q5m"}) == "q8m"
    assert common_layout({"q4z", "bf16"}) == "f32"


def test_what_moved_is_said(tmp_path: Path) -> None:
    plain = load(tiny.write_gguf_model(tiny.llama(), tmp_path / "a.gguf", "Q8_0"), "auto")
    assert placement(plain.program, plain.binding) == "every matrix in the layout of its format"
    wide = load(tiny.write_gguf_model(tiny.llama(), tmp_path / "b.gguf", "Q4_0"), "float32")
    assert placement(wide.program, wide.binding) == "Q4_0 -> f32: 23 matrices, 0.1 -> 0.5 MB"
