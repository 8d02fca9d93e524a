"""Attention on every level: against NumPy; bit for bit against itself cut and paged otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kvasir import _native
from kvasir.core.kvtypes import KV_TYPES
from tests.diff.attention_case import (
    Sequence,
    Shape,
    attend,
    chain_step,
    expected,
    random_sequence,
    tree_step,
    whole,
)

LEVELS = _native.levels()
FASTEST = LEVELS[-1]

SHAPES = {
    "plain": Shape(),
    "f32": Shape(dtype="f32"),
    "int8": Shape(dtype="int8"),
    "e4m3": Shape(dtype="fp8_e4m3", group=6, n_kv_heads=1),
    "e5m2": Shape(dtype="fp8_e5m2", block_size=32),
    "hd16": Shape(head_dim=16, group=1, n_kv_heads=3),
    "hd32": Shape(head_dim=32, group=8, n_kv_heads=1),
    "hd48": Shape(head_dim=48, group=7, n_kv_heads=1),
    "hd80": Shape(head_dim=80, group=4, n_kv_heads=1, block_size=32),
    "hd128": Shape(head_dim=128, group=5, n_kv_heads=1, dtype="f32"),
    "f32-all": Shape(dtype="f32", window=70, softcap=20.0, block_size=64, has_sinks=True),
    "hd256": Shape(head_dim=256, group=2, n_kv_heads=1),
    "hd512": Shape(head_dim=512, group=2, n_kv_heads=1),
    "window": Shape(window=37),
    "chunks": Shape(window=37, chunked=True),
    "long-chunks": Shape(window=1000, group=1, n_kv_heads=1, chunked=True),
    "window-of-one": Shape(window=1, group=1),
    "long-window": Shape(window=1000, group=1, n_kv_heads=1),
    "softcap": Shape(softcap=5.0, group=2, n_kv_heads=1),
    "int8-window": Shape(dtype="int8", window=70, softcap=20.0, block_size=64),
    "sinks": Shape(has_sinks=True),
    "sinks-window": Shape(dtype="int8", window=37, softcap=9.0, has_sinks=True),
    "alibi": Shape(alibi=True),
    "alibi-f32": Shape(dtype="f32", window=70, has_sinks=True, alibi=True),
    "alibi-int8": Shape(dtype="int8", group=1, n_kv_heads=5, alibi=True),
    "all": Shape(head_dim=48, group=3, n_kv_heads=2, window=70, softcap=20.0, block_size=64),
}

# (first, last + 1): around the subtile of 16, the tile of 64 and the segment of 1024
SPANS = [
    (0, 1),
    (0, 17),
    (14, 16),
    (15, 33),
    (60, 66),
    (63, 64),
    (64, 65),
    (100, 140),
    (1020, 1030),
]


def sequence(shape: Shape, length: int) -> Sequence:
    return random_sequence(shape, length, seed=shape.head_dim + length)


@pytest.mark.parametrize("level", LEVELS[1:] or LEVELS)
@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_matches_numpy(name: str, span: tuple[int, int], level: str) -> None:
    """f32 closely; else a probability is 1/512 off at most, and mostly they cancel."""
    seq = sequence(SHAPES[name], span[1])
    error = np.abs(whole(level, seq, *span) - expected(seq, *span))
    worst, mean = (4e-6, 1e-6) if seq.shape.dtype == "f32" else (8e-3, 1e-3)
    assert error.max() < worst
    assert error.mean() < mean


@pytest.mark.parametrize("name", SHAPES)
def test_levels_give_the_same_bits(name: str) -> None:
    for start, stop in [(0, 1), (0, 70), (118, 130), (1022, 1026)]:
        seq = sequence(SHAPES[name], stop)
        base = whole("scalar", seq, start, stop)
        assert np.isfinite(base).all()
        for level in LEVELS[1:]:
            assert_array_equal(whole(level, seq, start, stop), base, strict=True)


@pytest.mark.parametrize("level", LEVELS[1:] or LEVELS)
@pytest.mark.parametrize("name", SHAPES)
def test_cut_items_equal_the_whole(name: str, level: str) -> None:
    seq = sequence(SHAPES[name], 150)
    base = whole(level, seq, 40, 150)
    rng = np.random.default_rng(7)
    for n_cuts in (1, 3, 20, 109):
        cuts = sorted(int(c) for c in rng.choice(np.arange(1, 110), n_cuts, replace=False))
        assert_array_equal(whole(level, seq, 40, 150, cuts), base)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "name", ["plain", "int8", "long-window", "window", "sinks", "all", "alibi"]
)
def test_segments_apart_equal_the_whole(name: str, level: str) -> None:
    """Three segments, computed last first as threads may, and tokens on both sides of a border."""
    seq = sequence(SHAPES[name], 2060)
    for start, stop in [(2055, 2056), (2040, 2056), (1020, 1027), (3, 4)]:
        base = whole(level, seq, start, stop)
        assert_array_equal(whole(level, seq, start, stop, split=True), base)


def spans(start: int, stop: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Tokens see their own ``size`` to its end."""
    places = np.arange(start, stop)
    return np.minimum((places // size + 1) * size, stop).astype(np.int32)


@pytest.mark.parametrize("size", [25, 4000])
@pytest.mark.parametrize(
    "name", ["plain", "f32", "int8", "window", "sinks", "hd32", "f32-all", "alibi", "alibi-f32"]
)
def test_tokens_that_see_what_follows(name: str, size: int) -> None:
    """To the end of a span, or of everything, over a border of segments, too: as in NumPy, on all
    levels the same bits, in whatever items and segments."""
    for start, stop in [(0, 1), (0, 130), (1000, 1060)]:
        seq, ends = sequence(SHAPES[name], stop), spans(start, stop, size)
        base = whole("scalar", seq, start, stop, ends=ends)
        worst = 4e-6 if seq.shape.dtype == "f32" else 8e-3
        assert np.abs(base - expected(seq, start, stop, ends)).max() < worst
        cuts = [n for n in (1, 20, 40, 57) if n < stop - start]
        for level in LEVELS:
            assert_array_equal(whole(level, seq, start, stop, ends=ends), base, level)
            assert_array_equal(whole(level, seq, start, stop, cuts, ends=ends), base, level)
            assert_array_equal(whole(level, seq, start, stop, split=True, ends=ends), base, level)


def test_ends_that_leave_the_sequence_are_refused() -> None:
    seq = sequence(SHAPES["plain"], 20)
    for end in (0, 21):
        with pytest.raises(ValueError, match="sees itself and what is stored"):
            whole(FASTEST, seq, 0, 20, ends=np.full(20, end, np.int32))


@pytest.mark.parametrize("start", [0, 1000])
@pytest.mark.parametrize(
    "name", ["plain", "f32", "int8", "e4m3", "e5m2", "window", "all", "hd16", "alibi-int8"]
)
def test_decode_equals_prefill(name: str, start: int) -> None:
    """Token by token, with NaN in every entry after the token, the bits are those of one chunk."""
    stop = start + 90
    seq = sequence(SHAPES[name], stop)
    base = whole(FASTEST, seq, start, stop)
    for t in range(start, stop, 1 if start == 0 else 7):
        assert_array_equal(whole(FASTEST, seq, t, t + 1)[0], base[t - start])


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("name", ["plain", "int8", "all"])
def test_pages_may_lie_anywhere(name: str, block_size: int) -> None:
    seq = sequence(replace(SHAPES[name], block_size=16), 1100)
    base = whole(FASTEST, seq, 1050, 1100)
    other = replace(seq, shape=replace(seq.shape, block_size=block_size))
    order = np.random.default_rng(3).permutation(2 * (-(-1100 // block_size))).astype(np.int32)
    pages = other.pages(1100, order)
    out = attend(
        FASTEST, other.shape, pages, chain_step(pages, 1050, 1100), other.q[1050:1100], [9, 31]
    )
    assert_array_equal(out, base)


# Node -> parent; node 0 is the root. Depths differ, siblings are interleaved.
TREE = (-1, 0, 0, 1, 2, 1, 3, 3, 4, 8, 6)


def path_to(node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = TREE[node]
    return path[::-1]


@pytest.mark.parametrize("start", [0, 5, 60, 1021])
@pytest.mark.parametrize(
    "name",
    ["plain", "f32", "int8", "e4m3", "e5m2", "int8-window", "window", "hd80", "all", "alibi"],
)
def test_tree_equals_chain(name: str, start: int) -> None:
    """Every node of a tree gets the bits that its path would get as a chain, on every level."""
    shape = SHAPES[name]
    depth = [len(path_to(i)) - 1 for i in range(len(TREE))]
    seq = sequence(shape, start + len(TREE))  # q, k, v of the prefix, then of each node
    pages = seq.pages(seq.length)
    pos = np.array([start + d for d in depth], np.int32)
    step = tree_step(pages, start, pos, np.array(TREE, np.int32))
    trees = [attend(level, shape, pages, step, seq.q[start:], [4, 5]) for level in LEVELS]
    for node in range(len(TREE)):
        rows = [*range(start), *(start + i for i in path_to(node))]
        chain = Sequence(shape, seq.q[rows], seq.k[rows], seq.v[rows])
        last = len(rows) - 1
        expected_bits = whole(FASTEST, chain, last, last + 1)[0]
        for level, out in zip(LEVELS, trees, strict=True):
            assert_array_equal(out[node], expected_bits, level)


@pytest.mark.parametrize("dtype", KV_TYPES)
def test_not_finite_stays_not_finite(dtype: str) -> None:
    """NaN in a visible key reaches the output of the queries that see it, and of no other."""
    seq = sequence(Shape(dtype=dtype), 50)
    base = whole(FASTEST, seq, 0, 50)
    seq.k[30, 0, 5] = np.float32(np.nan)
    out = whole(FASTEST, seq, 0, 50)
    half = seq.shape.group * seq.shape.head_dim
    assert_array_equal(out[:30], base[:30])
    assert_array_equal(out[30:, half:], base[30:, half:])
    assert np.isnan(out[30:, :half]).all()


@pytest.mark.parametrize("level", LEVELS)
def test_batched_equals_alone(level: str) -> None:
    """Two sequences of one step, pages interleaved, give what each gives alone."""
    shape = SHAPES["plain"]  # pages of one size
    spans = [(20, 27), (70, 71)]
    seqs = [sequence(shape, stop) for _, stop in spans]
    order = np.random.default_rng(5).permutation(10).astype(np.int32)
    pages = [seqs[0].pages(27, order), seqs[1].pages(71, order[::-1].copy())]
    memory = pages[0].memory
    memory[pages[1].table] = pages[1].memory[pages[1].table]
    assert not set(pages[0].table) & set(pages[1].table)
    pos = np.concatenate([np.arange(*span, dtype=np.int32) for span in spans])
    tables = np.full((2, 5), -1, np.int32)
    for row, p in zip(tables, pages, strict=True):
        row[: len(p.table)] = p.table
    begin, start = np.array([0, 7, 8], np.int32), np.array([20, 70], np.int32)
    seq_of = np.repeat(np.arange(2, dtype=np.int32), [7, 1])
    none = np.full(8, -1, np.int32)
    step = _native.StepRows(seq_of, pos, pos, none, begin, start, np.zeros(2, np.uint8), tables)
    q = np.concatenate([s.q[slice(*span)] for s, span in zip(seqs, spans, strict=True)])
    out = np.full_like(q, np.nan)
    kernels, kv = _native.Kernels(level), pages[0].native()
    for i in range(2):
        for head in range(shape.n_kv_heads):
            ends = int(begin[i]), int(begin[i + 1])
            kernels.attention(q, out, shape.scale, 0.0, 0, kv, step, i, *ends, head)
    alone = [whole(level, s, *span) for s, span in zip(seqs, spans, strict=True)]
    assert_array_equal(out, np.concatenate(alone), strict=True)
