"""Variants of the linear kernels: whatever is chosen, the bits are the same."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kvasir import _native
from kvasir.exec.cpu.codes import LAYOUT_CODES
from kvasir.exec.cpu.sites import N_CLASSES
from tests.diff.kernel_case import LAYOUTS, Case
from tests.diff.linear_case import ADD, GATED, linear_case

LEVELS = _native.levels(emulated=True)
NAMES = [name for name, _ in _native.variants()]
ROWS = (1, 3, 8, 13, 21)


def cases() -> dict[str, Case]:
    found = {}
    for i, name in enumerate(LAYOUTS):
        for M in ROWS:
            epilogue = ADD if M == 3 else GATED if M == 13 else 0
            found[f"{name}-{M}"] = linear_case(i, M, 40, 288, epilogue, biased=M == 8)
    return found


CASES = cases()


def held_cases() -> dict[str, Case]:
    """Of blocks of 64, which alone are held: rows odd and even, more than one pass, tiles cut."""
    found = {}
    for name in ("q8", "q4z", "q4m", "q4k", "q5k", "q6k", "q5z", "q5m", "iq4", "q8s", "q8m"):
        i = LAYOUTS.index(name)
        found |= {
            f"{name}-one": linear_case(i, 1, 40, 1280),
            f"{name}-odd": linear_case(i, 5, 40, 1280, ADD, indexed=True),
            f"{name}-gated": linear_case(i, 8, 24, 1280, GATED, biased=True),
            f"{name}-tiles": linear_case(i, 14, 70, 1280, by_tiles=True),
            f"{name}-many": linear_case(i, 133, 33, 1280, biased=True),
            f"{name}-deep": linear_case(i, 36, 16, 8960),
        }
    return found


def grouped_cases() -> dict[str, Case]:
    """Of kernels for integer codes, which take blocks of 64 alone."""
    found = {}
    for name in ("qg4_32", "qg4_64", "qg4_128", "qg8_32", "qg8_64", "qg8_128", "q4c", "q8c"):
        i = LAYOUTS.index(name)
        for M in ROWS:
            epilogue = ADD if M == 3 else GATED if M == 13 else 0
            found[f"{name}-{M}"] = linear_case(i, M, 40, 1280, epilogue, biased=M == 8)
    return found


GROUPED = grouped_cases()


@pytest.mark.parametrize("level", LEVELS)
def test_every_variant_has_the_bits_of_the_first(level: str) -> None:
    tried = set()
    for name, case in (*CASES.items(), *GROUPED.items()):
        layout = LAYOUT_CODES[name.rsplit("-", 1)[0]]
        whole = [(0, case.n_items)]
        expected = case.run(_native.Kernels(level), whole)
        number = sum(case.n_items > end for end in _native.ROW_CLASS_ENDS)
        for variant in _native.variants_for(level, layout, number)[1:]:
            tried.add(NAMES[variant])
            found = case.run(_native.Kernels(level, variant), whole)
            for got, want in zip(found, expected, strict=True):
                assert_array_equal(got, want, strict=True, err_msg=f"{name} {NAMES[variant]}")
    if level != "scalar":
        assert tried >= {"near", "pairs", "singles", "fours", "panel", "no panel"}
    assert ("narrow" in tried) == level.startswith(("avx512", "amx"))


@pytest.mark.parametrize("level", [x for x in LEVELS if x == "avx512_vnni"])
def test_held_weights_have_the_bits_of_others(level: str) -> None:
    held = NAMES.index("held")
    for name, case in held_cases().items():
        whole = [(0, case.n_items)]
        cut = [(i, min(i + 4, case.n_items)) for i in range(0, case.n_items, 4)]
        (expected,) = case.run(_native.Kernels(level), whole)
        for ranges in (whole, cut):
            (found,) = case.run(_native.Kernels(level, held), ranges)
            assert_array_equal(found, expected, strict=True, err_msg=name)


def test_the_table() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert NAMES[0] == "usual"
    for layout in LAYOUT_CODES.values():
        for number in range(N_CLASSES):
            assert _native.variants_for("scalar", layout, number)[0] == 0
    with pytest.raises(ValueError, match="no such variant"):
        _native.Kernels("scalar", len(NAMES))
    narrow = NAMES.index("narrow")
    assert all(
        narrow not in _native.variants_for(level, LAYOUT_CODES["q4m"], 0)
        for level in ("scalar", "avx2")
        if level in LEVELS
    )


def test_halves_are_read_as_the_floats_that_they_are() -> None:
    """The layout of F16 has the bits that f32 has of the same values."""
    rng = np.random.default_rng(5)
    half = rng.standard_normal((40, 77)).astype(np.float16)
    half[0, :3] = (6e-8, -6e-8, 65504)  # the smallest and the largest
    x = rng.standard_normal((9, 77), dtype=np.float32)
    pool = _native.Pool(1)
    for level in LEVELS:
        found = []
        for layout in ("f16", "f32"):
            code = LAYOUT_CODES[layout]
            w = np.zeros(3 * _native.tile_bytes(code, 77), np.uint8)
            _native.pack_rows(pool, code, "F16", half.reshape(-1).view(np.uint8), 40, 77, w)
            out = np.zeros((9, 40), np.float32)
            kernels = _native.Kernels(level)
            kernels.linear(code, w, 40, _native.Rows(x), out, 0, 3, 0, 9)
            ids = np.array([0, 17, 39], np.int32)
            rows = np.zeros((3, 77), np.float32)
            kernels.embed(code, w, ids, 0.5, rows, 0, 3)
            assert_array_equal(rows, half[ids].astype(np.float32) * np.float32(0.5))
            found.append(out)
        assert_array_equal(*found, strict=True)
