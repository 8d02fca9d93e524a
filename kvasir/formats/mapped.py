"""Read-only memory mappings of model files, and the table of tensors in them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvasir.core.errors import ModelError
from kvasir.formats.types import FORMATS, Bytes, TensorInfo, unsupported


def map_file(path: Path) -> mmap.mmap:
    """Map a whole file read-only.

    Raises ModelError when it is missing, unreadable, empty or no regular file.
    """
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise ModelError(f"{path} {what}: check the path", code="model_not_found")
    try:
        with path.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
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


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A parsed file: its tensors, and what it says about itself."""

    path: Path
    tensors: TensorTable
    metadata: Mapping[str, object]
    header: Bytes
    """All bytes before the first tensor's data, 1-D."""
    n_bytes: int
    mapping: mmap.mmap

    def release(self) -> None:
        """Give back the memory of pages that were read; the next look reads them again."""
        self.mapping.madvise(mmap.MADV_DONTNEED)


def byte_view(mapping: mmap.mmap) -> Bytes:
    """The mapping as a read-only array, 1-D; it keeps the mapping alive."""
    return np.frombuffer(mapping, np.uint8)
