"""Whatever happens to a file of saved blocks: a block comes back as it was, or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.exec.disk.directory import N_SEGMENTS, Limits, SegmentDirectory
from kvasir.exec.disk.segment import ENTRY_BYTES, DamagedSegment, Segment, table_bytes

BLOCKS = {bytes([i]) * 36: bytes([i]) * (40 + i) for i in range(1, 8)}
LIMITS = Limits(N_SEGMENTS * 4096, (64,))


def written() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        segment = Segment.create(Path(folder) / "a", 9)
        for name, payload in BLOCKS.items():
            segment.append(name, payload)
        segment.close()
        return (Path(folder) / "a").read_bytes()


WHOLE = written()

overwrite = st.tuples(
    st.just("overwrite"), st.integers(0, len(WHOLE)), st.binary(min_size=1, max_size=12)
)
in_table = st.tuples(
    st.just("overwrite"),
    st.integers(0, table_bytes(9)),
    st.sampled_from((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)).map(
        lambda n: n.to_bytes(8, "little")
    ),
)
insert = st.tuples(st.just("insert"), st.integers(0, len(WHOLE)), st.binary(max_size=80))
cut = st.tuples(st.just("cut"), st.integers(0, len(WHOLE)), st.just(b""))
swap = st.tuples(st.just("swap"), st.integers(0, 6), st.just(b""))
damages = st.lists(st.one_of(overwrite, in_table, insert, cut, swap), min_size=1, max_size=4)


def damage(data: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for kind, at, what in changes:
        if kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + what + data[at:]
        elif kind == "overwrite":
            data = data[:at] + what + data[at + len(what) :]
        else:  # two entries change places, and with them nothing but the names' order
            a, b = (ENTRY_BYTES * (1 + at + i) for i in range(2))
            data = data[:a] + data[b : b + ENTRY_BYTES] + data[a:b] + data[b + ENTRY_BYTES :]
    return data


@settings(max_examples=150, deadline=None)
@given(damages)
def test_a_damaged_file_holds_right_blocks_or_none(
    changes: list[tuple[str, int, bytes]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{3:016d}.kvseg"
        path.write_bytes(damage(WHOLE, changes))
        held = SegmentDirectory(Path(folder), LIMITS)
        for name, payload in BLOCKS.items():
            assert held.read(name) in (None, payload)
        held.append(b"x" * 36, b"new")
        assert held.read(b"x" * 36) == b"new"
        held.close()
        again = SegmentDirectory(Path(folder), LIMITS)
        assert again.read(b"x" * 36) == b"new"
        again.close()


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=4096))
def test_a_foreign_file_is_refused_or_holds_nothing(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(data)
        try:
            segment = Segment.open(path)
        except DamagedSegment as error:
            assert str(path) in error.message
            return
        assert all(segment.read(name) is None for name in segment.places)
        segment.close()
