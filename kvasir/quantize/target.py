"""What a method makes of a matrix: tensors of a file whose sizes are known before anything is
read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import ModelError

Matrix = NDArray[np.float32]
"""[rows, K]"""


class MadeTensor(NamedTuple):
    """A tensor of the file that is written."""

    name: str
    dtype: str
    """As the container calls it."""
    shape: tuple[int, ...]
    n_bytes: int
    constant: bytes | None = None
    """What it is whatever the weights are."""
    turned: int = 0
    """Bytes of an element of a tensor whose columns are what runs of rows are encoded to: it is
    gathered whole, and turned. 0: they are its rows."""


Scheme = Mapping[str, object]
"""As quantization_config says it."""


class RowMethod(Protocol):
    """Makes runs of rows of a matrix to bytes of its targets, in their order."""

    @property
    def name(self) -> str: ...

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        """Of a matrix [N, K], or of several [E, N, K]."""
        ...

    def begin(self) -> None:
        """Before the first rows of a matrix."""
        ...

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        """Of targets without a constant; ``rows``: a multiple of 32 of them, or the last. Raises
        ModelError for numbers that it cannot say."""
        ...

    def end(self) -> None:
        """Behind the last."""
        ...


class FolderForm(Protocol):
    """What the tensors of a Hugging Face folder are."""

    @property
    def name(self) -> str: ...

    @property
    def format(self) -> str: ...

    @property
    def multiple(self) -> int:
        """Elements of rows are a multiple of it, or a matrix stays as it is."""
        ...

    def config(self, kept: Sequence[str]) -> Scheme:
        """The quantization_config that says how the tensors are read; ``kept``: modules that stay
        as they are, ``lm_head`` unless it is quantized among them."""
        ...


class FolderMethod(FolderForm, RowMethod, Protocol):
    """One row method for all matrices of a folder."""


class AnyRows(msgspec.Struct, frozen=True):
    """Of methods that keep nothing from one run to the next."""

    @property
    def multiple(self) -> int:
        return 32

    def begin(self) -> None:
        return

    def end(self) -> None:
        return


def finite_scales(scales: Matrix) -> Matrix:
    """``scales``, 1 for rows or groups of zeros, so that nothing is divided by 0. Raises ModelError
    where one is beyond all numbers."""
    if not np.isfinite(scales).all():
        raise ModelError("weights are so large that no scale says them: the checkpoint is damaged")
    return np.where(scales > 0, scales, np.float32(1)).astype(np.float32)
