"""Importance matrices of llama.cpp: GGUF files with sums of squares of what matrices met, and how
many rows there were."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import ModelError
from kvasir.formats.decode import values_of
from kvasir.formats.gguf import open_gguf
from kvasir.quantize.statistics import Inputs, Vector
from kvasir.quantize.target import Matrix

SUMS, COUNTS = ".in_sum2", ".counts"


class Imatrix:
    """Statistics that know squares alone."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError for what is no such file. Matrices that lie in one tensor (experts)
        have no squares of their own here."""
        file = open_gguf(path)
        names = [x.removesuffix(SUMS) for x in file.tensors if x.endswith(SUMS)]
        if file.metadata.get("general.type") != "imatrix" or not names:
            raise ModelError(
                f"{path} is no imatrix: general.type is {file.metadata.get('general.type')!r}, and "
                f"{len(names)} tensors end in {SUMS}. Files of the older format (.dat) are "
                "converted by llama-imatrix --in-file OLD --output-format gguf"
            )
        hashed, self._squares = blake2b(digest_size=16), dict[str, Vector]()
        for name in sorted(names):
            sums, counts = (
                values_of(file.tensors[name + x]) if name + x in file.tensors else None
                for x in (SUMS, COUNTS)
            )
            if sums is None or counts is None or not (_is_sum(sums) and _is_sum(counts)):
                raise ModelError(f"{path}: '{name}' has no counts, or sums that are none")
            hashed.update(name.encode() + sums.tobytes() + counts.tobytes())
            if counts.size == 1 and counts.item() >= 1:
                self._squares[name] = sums.reshape(-1) / np.float32(counts.item())
        self.digest = hashed.hexdigest()

    def inputs(self, tensor: str) -> Inputs | None:
        squares = self._squares.get(tensor)
        if squares is None:
            return None
        nothing: Vector = np.zeros(0, np.float32)
        none: Matrix = np.zeros((0, 0), np.float32)
        return Inputs(none, squares, nothing, nothing, none, 1)

    def knows(self, tensor: str) -> bool:
        return tensor in self._squares

    def forget(self, tensors: Collection[str]) -> None:
        return


def _is_sum(values: NDArray[np.float32]) -> bool:
    return bool((np.isfinite(values) & (values >= 0)).all())
