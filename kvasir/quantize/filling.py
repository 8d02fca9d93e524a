"""Fills a file whose places are known: a run of rows at a time, so that memory stays small."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import numpy as np

from kvasir.core.errors import ModelError
from kvasir.formats.decode import bytes_of, decode
from kvasir.formats.types import FORMATS, TensorInfo
from kvasir.quantize.target import MadeTensor, Matrix, RowMethod

_RUN = 1 << 20
"""Elements of a run of rows: with all that is made of them some 30 MB."""
_ALIGNED = 128
"""Rows of a run: so many share a scale, and zeros of 32 fill words."""
Told = Callable[[int, int], None]


class WrittenTensors(Protocol):
    """Of a run that may be killed: which tensors are in the file."""

    def has(self, name: str) -> bool: ...

    def add(self, name: str) -> None: ...


class Piece(msgspec.Struct, frozen=True):
    """A tensor of the source and what it becomes; without a method it is copied."""

    source: TensorInfo
    targets: tuple[MadeTensor, ...]
    method: RowMethod | None = None


def copied(info: TensorInfo) -> Piece:
    n_bytes = info.data.nbytes if info.module is None else FORMATS[info.format].n_bytes(info.shape)
    return Piece(info, (MadeTensor(info.name, info.format, info.shape, n_bytes),))


def fill(
    stream: BinaryIO,
    pieces: Sequence[Piece],
    places: Mapping[str, int],
    release: Callable[[], None],
    record: WrittenTensors,
    told: Told,
) -> None:
    """``places``: where each target begins. ``release`` gives back what was read of the source;
    ``told``: how many pieces of how many are done. Raises ModelError naming the tensor."""
    for i, piece in enumerate(pieces):
        if not record.has(piece.source.name):
            _write(stream, piece, places)
            stream.flush()
            os.fsync(stream.fileno())
            record.add(piece.source.name)
            release()
        told(i + 1, len(pieces))


@contextmanager
def opened(path: Path, head: bytes, n_bytes: int) -> Iterator[BinaryIO]:
    """To be filled behind its ``head``, with what it has. Its blocks are taken now, so that a disk
    that is full says so before hours are spent. Raises OSError."""
    with path.open("r+b" if path.exists() else "w+b") as stream:
        stream.write(head)
        stream.truncate(n_bytes)
        stream.flush()
        os.posix_fallocate(stream.fileno(), 0, n_bytes)
        yield stream


def _write(stream: BinaryIO, piece: Piece, places: Mapping[str, int]) -> None:
    if piece.method is None:
        stream.seek(places[piece.targets[0].name])
        module = piece.source.module
        stream.write(piece.source.data if module is None else module.rows())
    else:
        _encode(stream, piece, piece.method, places)


def _encode(stream: BinaryIO, piece: Piece, method: RowMethod, places: Mapping[str, int]) -> None:
    for target in piece.targets:
        if target.constant is not None:
            stream.seek(places[target.name])
            stream.write(target.constant)
    made = [_FillingTarget(x, places[x.name]) for x in piece.targets if x.constant is None]
    method.begin()
    for rows in runs_of(piece.source):
        for making, data in zip(made, method.encode(rows), strict=True):
            making.add(stream, data)
    method.end()
    for making in made:
        making.end(stream)


class _FillingTarget:
    """A target while its runs come."""

    def __init__(self, target: MadeTensor, at: int) -> None:
        self._target, self._at = target, at
        self._columns: list[bytes] = []

    def add(self, stream: BinaryIO, data: bytes) -> None:
        if self._target.turned:
            self._columns.append(data)
            return
        stream.seek(self._at)
        stream.write(data)
        self._at += len(data)

    def end(self, stream: BinaryIO) -> None:
        if self._target.turned:
            columns = np.frombuffer(b"".join(self._columns), f"V{self._target.turned}")
            rows = np.ascontiguousarray(columns.reshape(-1, self._target.shape[0]).T)
            stream.seek(self._at)
            stream.write(rows.data)


def runs_of(info: TensorInfo) -> Iterator[Matrix]:
    """Its rows, some at a time. Raises ModelError for numbers that are not finite."""
    k = info.shape[-1]
    n, row = math.prod(info.shape[:-1]), FORMATS[info.format].n_bytes((k,))
    stored = bytes_of(info)
    step = max(1, _RUN // k // _ALIGNED) * _ALIGNED
    for begin in range(0, n, step):
        data = stored[begin * row : min(begin + step, n) * row]
        rows = decode(info.format, data).reshape(-1, k)
        if not np.isfinite(rows).all():
            raise ModelError(
                f"tensor '{info.name}' holds numbers that are not finite: the checkpoint is "
                "damaged, download it again"
            )
        yield rows
