"""The types of the KV cache: rounding against literal tables, written by the kernels as stated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from kvasir import _native
from kvasir.core.kvtypes import KV_TYPES
from kvasir.exec.reference.kvtypes import round_fp8, round_kv
from tests import kv_codes
from tests.diff.attention_case import Pages, Shape, chain_step

EIGHT_BITS = [name for name, kind in KV_TYPES.items() if kind.item_bytes == 1]
HEAD = 16


@pytest.mark.parametrize("dtype", kv_codes.FP8)
def test_every_code_is_a_fixed_point_and_ends_are_literal(dtype: str) -> None:
    table = kv_codes.FP8[dtype]
    finite = table[np.isfinite(table)]
    assert_array_equal(round_fp8(finite, KV_TYPES[dtype]), finite)
    literal = {"fp8_e4m3": (448.0, 2.0**-9, 254), "fp8_e5m2": (57344.0, 2.0**-16, 248)}
    assert (finite.max(), finite[finite > 0].min(), len(finite)) == literal[dtype]


@pytest.mark.parametrize("dtype", kv_codes.FP8)
def test_halves_between_codes_round_to_the_even_one(dtype: str) -> None:
    table = kv_codes.FP8[dtype][:128]
    table = table[np.isfinite(table)]
    middle = (table[:-1] + table[1:]) / 2
    even = np.where(np.arange(len(middle)) % 2 == 0, table[:-1], table[1:])
    assert_array_equal(round_fp8(middle, KV_TYPES[dtype]), even)
    assert_array_equal(round_fp8(np.nextafter(middle, np.float32(0)), KV_TYPES[dtype]), table[:-1])
    beyond = np.nextafter(middle, np.float32(np.inf))
    assert_array_equal(round_fp8(beyond, KV_TYPES[dtype]), table[1:])


def test_what_is_too_large_saturates_and_what_is_not_finite_shows() -> None:
    x = np.array([1e30, -1e30, 6e4], np.float32)
    assert round_fp8(x, KV_TYPES["fp8_e5m2"]).tolist() == [57344.0, -57344.0, 57344.0]
    assert round_fp8(x, KV_TYPES["fp8_e4m3"]).tolist() == [448.0, -448.0, 448.0]
    for dtype in EIGHT_BITS:
        head = np.ones(HEAD, np.float32)
        head[3] = np.inf
        assert np.isnan(round_kv(head, dtype)).any()


def test_outliers_are_kept_and_small_heads_are_not_lost() -> None:
    """What a scale is for: E4M3 alone would end at 448 and lose what is below 2^-10."""
    for factor in (1e4, 1e-6):
        head = np.linspace(-1, 1, HEAD, dtype=np.float32) * np.float32(factor)
        for dtype, bound in (("int8", 1 / 250), ("fp8_e4m3", 1 / 16)):
            error = np.abs(round_kv(head, dtype) - head).max()
            assert error <= bound * factor


some_head = st.lists(
    st.floats(width=32, allow_nan=False, min_value=-(2.0**60), max_value=2.0**60),
    min_size=HEAD,
    max_size=HEAD,
).map(lambda values: np.array(values, np.float32) + np.float32(0))  # no -0: rope turns its sign


@pytest.mark.parametrize("dtype", KV_TYPES)
@given(head=some_head)
@settings(max_examples=60, deadline=None)
def test_rounding_is_that_of_the_codes(dtype: str, head: kv_codes.Floats) -> None:
    heads = head.reshape(2, -1)
    codes, scale = kv_codes.encode(heads, dtype)
    assert_array_equal(round_kv(heads, dtype), kv_codes.decode(codes, scale, dtype))


@pytest.mark.parametrize("level", _native.levels())
@pytest.mark.parametrize("dtype", KV_TYPES)
@given(k=some_head, v=some_head)
@settings(max_examples=30, deadline=None)
def test_kernels_write_those_codes(
    dtype: str, level: str, k: kv_codes.Floats, v: kv_codes.Floats
) -> None:
    """Positions without rotation: the page holds exactly the codes of k and v, and what lies
    beside them stays."""
    shape = Shape(head_dim=HEAD, group=1, n_kv_heads=1, dtype=dtype)
    order = np.zeros(1, np.int32)
    table = np.repeat(np.array([[1, 0]], np.float32), HEAD // 2, axis=1)
    pages, expected = Pages(shape, 16, order), Pages(shape, 16, order)
    expected.write(5, k[None, None], v[None, None])
    qkv = np.concatenate([np.zeros(HEAD, np.float32), k, v])[None]
    q = np.zeros((1, HEAD), np.float32)
    step = chain_step(pages, 5, 6)
    table = np.tile(table, (8, 1))
    kernels = _native.Kernels(level)
    rule = (1, True, table, table, 0, None, None, 1e-6)
    kernels.rope_write(qkv, q, *rule, pages.native(), step, 0, 1)
    assert_array_equal(pages.memory, expected.memory)
