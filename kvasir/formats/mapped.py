"""Read-only memory mappings of model files, and the table of tensors in them."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kvasir.core.errors import ModelError
from kvasir.formats.types import FORMATS, TensorInfo, unsupported


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which file it is and when it last changed, by the file system. Times are nanoseconds.

    Any program can set ``modified`` to what it was; ``changed`` (ctime) is the kernel's own.
    """

    device: int
    inode: int
    n_bytes: int
    modified: int
    changed: int
    seen: int = field(compare=False, repr=False)
    """When this was asked for."""

    @staticmethod
    def of(file: Path | int) -> Stamp:
        """Raises OSError."""
        now, stat = time.time_ns(), os.stat(file)
        times = stat.st_mtime_ns, stat.st_ctime_ns
        return Stamp(stat.st_dev, stat.st_ino, stat.st_size, *times, now)


def map_file(path: Path) -> tuple[mmap.mmap, Stamp]:
    """Map a whole file read-only; its stamp is that of the moment before.

    Raises ModelError when it is missing, unreadable, empty or no regular file.
    """
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise ModelError(f"{path} {what}: check the path", code="model_not_found")
    try:
        with path.open("rb") as stream:
            stamp = Stamp.of(stream.fileno())
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), stamp
    except ValueError:
        raise ModelError(f"{path} is empty: download it again") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None


class TensorTable(Mapping[str, TensorInfo]):
    """Tensors by name. Looking up one of an unsupported format raises ModelError."""

    def __init__(self, tensors: Mapping[str, TensorInfo]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> TensorInfo:
        info = self._tensors[name]
        if info.format not in FORMATS:
            raise unsupported(name, info.format)
        return info

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def listing(self) -> list[TensorInfo]:
        """All entries, those of unsupported formats too."""
        return list(self._tensors.values())


class TensorFile(msgspec.Struct, frozen=True):
    """A parsed file: its tensors, and what it says about itself."""

    path: Path
    tensors: TensorTable
    metadata: Mapping[str, object]
    mapping: mmap.mmap
    stamp: Stamp
    """When it was mapped."""
    data_start: int = 0
    """Where the tensors of a GGUF file begin, bytes."""

    @property
    def is_unchanged(self) -> bool:
        """Whether the file at ``path`` is still the one that was mapped, as it was then."""
        try:
            return Stamp.of(self.path) == self.stamp
        except OSError:
            return False

    def release(self) -> None:
        """Give back the memory of pages that were read; the next look reads them again."""
        self.mapping.madvise(mmap.MADV_DONTNEED)


def byte_view(mapping: mmap.mmap) -> memoryview:
    """The mapping as read-only bytes, which keep it alive."""
    return memoryview(mapping)
