"""Every kernel but attention on every level: against NumPy, scalar (bit for bit), and cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from kvasir import _native
from tests.diff.kernel_case import Case, Ranges, empty_q8, normal, rng_of
from tests.diff.linear_case import linear_cases
from tests.diff.row_case import GELU, GELU_TANH, SILU, Gate, row_cases
from tests.kv_codes import from_bf16, to_bf16

LEVELS = _native.levels(emulated=True)
CASES: dict[str, Case] = row_cases() | linear_cases()


def outputs(name: str, level: str, ranges: Ranges | None = None) -> tuple[NDArray[np.generic], ...]:
    case = CASES[name]
    return case.run(_native.Kernels(level), [(0, case.n_items)] if ranges is None else ranges)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_matches_numpy(name: str, level: str) -> None:
    results = outputs(name, level)
    wanted = CASES[name].expected()
    assert len(results) == len(wanted)
    for got, (want, bound) in zip(results, wanted, strict=True):
        assert got.shape == want.shape
        excess = np.abs(got.astype(np.float64) - want.astype(np.float64)) - bound
        assert excess.max() <= 0, f"off by {excess.max()} more than allowed"


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("name", CASES)
def test_level_equals_scalar(name: str, level: str) -> None:
    for got, want in zip(outputs(name, level), outputs(name, "scalar"), strict=True):
        assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_cut_anywhere(name: str, level: str) -> None:
    whole = outputs(name, level)
    case = CASES[name]
    inner = [*range(case.step, case.n_items, case.step)]
    for cuts in (inner, inner[1::3], inner[:1]):
        ranges = [*pairwise([0, *cuts, case.n_items])][
            ::-1
        ]  # backwards: order must not matter either
        for got, want in zip(outputs(name, level, ranges), whole, strict=True):
            assert_array_equal(got, want, strict=True)


def test_emulated_levels_are_for_tests() -> None:
    emulated = set(LEVELS) - set(_native.levels())
    vnni = {"avx2_vnni_emulated"} if "avx2" in LEVELS else set()
    assert emulated == vnni | ({"amx_emulated"} if "avx512_vnni" in LEVELS else set())
    assert all(_native.Kernels(level).level == level for level in LEVELS)
    assert all(runs == (name in LEVELS) for name, runs, _ in _native.all_levels())


@pytest.mark.parametrize("level", [name for name, *_ in _native.all_levels()])
def test_which_levels_run_here(level: str) -> None:
    """A level that is skipped here was compiled; what tests say of it was said on another CPU."""
    if level not in LEVELS:
        stand_in = f"{level}_emulated"
        how = f"runs as {stand_in}" if stand_in in LEVELS else "does not run"
        pytest.skip(f"this CPU lacks instructions of {level}: it {how}")


def test_kernels_refuse_unknown_level() -> None:
    with pytest.raises(ValueError, match="it has scalar"):
        _native.Kernels("avx1024")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_poisons_its_block_only(level: str, bad: float) -> None:
    """A value that is not finite may not be quantized to a small number."""
    x = normal(rng_of(1), 3, 64)
    x[1, 40] = bad
    q8 = empty_q8(3, 64, 32)
    _native.Kernels(level).cast(x, q8.rows, 0, 3)
    assert np.isfinite(q8.scales).tolist() == [[True, True], [True, False], [True, True]]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("act", [SILU, GELU_TANH, GELU])
def test_activations_at_the_ends(act: int, level: str) -> None:
    x = np.array([[-1e30, -200, -95, -20, -0.0, 0.0, 1e-30, 20, 95, 1e12]], np.float32)
    out = Gate(x.shape[1]).run(_native.Kernels(level), x, np.ones_like(x), act, [(0, 1)])
    assert_array_equal(out[0, :3], 0)
    assert_array_equal(out[0, 8:], x[0, 8:])
    assert np.abs(out[0, 3:7]).max() < 1e-7
    assert abs(out[0, 7] - 20) < 1e-5


@pytest.mark.parametrize("level", LEVELS)
def test_bf16_rounds_half_to_even(level: str) -> None:
    tops = np.array([0, 1, 0x3F80, 0x3F81, 0x7F7F, 0x8001, 0xBF81, 0xFF7F], np.uint32) << 16
    rests = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = (tops[:, None] + rests).reshape(1, -1)
    special = np.array([[0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF]], np.uint32)
    x = np.concatenate([bits, special], axis=1).view(np.float32)
    out = np.zeros(x.shape, np.uint16)
    _native.Kernels(level).cast(x, _native.Rows(out), 0, 1)
    n = bits.shape[1]
    assert_array_equal(out[:, :n], to_bf16(x[:, :n]))
    assert out[0, n : n + 2].tolist() == [0x7F80, 0xFF80]
    assert np.isnan(from_bf16(out[0, n + 2 :])).all()


@pytest.mark.parametrize("level", LEVELS)
def test_int8_rounds_half_to_even(level: str) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 125.5]
    q8 = empty_q8(1, 32, 32)
    _native.Kernels(level).cast(x, q8.rows, 0, 1)
    assert q8.data[0, :8].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]
    assert (q8.scales.item(), q8.sums.tolist()) == (1, [[[253, 253]]])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("groups", [(), (1, 4, 2, 1)], ids=["plain", "groups"])
def test_route_of_not_finite_logits_is_safe(level: str, groups: tuple[int, ...]) -> None:
    """Ids stay valid, weights say that something is wrong, other tokens do not notice."""
    bias = np.zeros(8, np.float32) if groups else None
    logits = normal(rng_of(2), 3, 8)
    logits[1, 3] = np.nan
    ids, weights = np.full((3, 2), -1, np.int32), np.zeros((3, 2), np.float32)
    _native.Kernels(level).route(logits, bias, True, ids, weights, 0, 3, *groups)
    assert ((ids >= 0) & (ids < 8)).all()
    assert np.isfinite(weights).all(axis=1).tolist() == [True, False, True]
