"""Whatever happens to a file of packed weights: they come back as they were, or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir import _native
from kvasir.exec.cpu.packed import PackedCache
from kvasir.exec.cpu.packing import packing_of

POOL = _native.Pool(1)
PACKING = packing_of("model", "packing", (500, 1, 0, 4000))
WEIGHTS = [np.arange(size).astype(np.uint8) for size in PACKING.sizes]


def written() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        PackedCache(Path(folder), 1 << 30).store(PACKING, WEIGHTS)
        return (Path(folder) / PACKING.file_name).read_bytes()


WHOLE = written()
AT = st.one_of(st.integers(0, 100), st.integers(0, len(WHOLE)))
edits = st.lists(
    st.one_of(
        st.tuples(st.just("overwrite"), AT, st.binary(min_size=1, max_size=40)),
        st.tuples(st.just("insert"), AT, st.binary(max_size=80)),
        st.tuples(st.just("cut"), AT, st.just(b"")),
    ),
    min_size=1,
    max_size=3,
)


def edited(data: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for kind, at, new in changes:
        rest = {"overwrite": data[at + len(new) :], "insert": data[at:], "cut": b""}[kind]
        data = data[:at] + new + rest
    return data


@given(edits)
@settings(max_examples=150, deadline=None)
def test_damage_is_found(changes: list[tuple[str, int, bytes]]) -> None:
    data = edited(WHOLE, changes)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / PACKING.file_name).write_bytes(data)
        found = PackedCache(Path(folder), 1 << 30).load(PACKING, POOL)
    assert (found is not None) == (data == WHOLE)
    if found is not None:
        assert all(np.array_equal(a, b) for a, b in zip(found, WEIGHTS, strict=True))
