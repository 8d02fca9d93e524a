"""What ``heads`` does, for who imports it only when it is wanted: it brings NumPy and all
families."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Literal, Protocol


class ReadsVector(Protocol):
    def logits(self, vector: bytes) -> tuple[float, ...]:
        """Of f32 [size] as bytes."""
        ...


class ReadsVectors(Protocol):
    """Of one model."""

    @property
    def dense(self) -> Sequence[object]:
        """Layers that ``told`` needs. Raises ModelError."""
        ...

    def named(self, name: tuple[int, ...] | Literal["classifier"]) -> ReadsVector:
        """The head of these tokens, or the model's own. Raises ModelError."""
        ...

    def told(self, vector: bytes) -> Generator[None, None, bytes]:
        """A vector behind its dense layers; yields after every fraction of a millisecond."""
        ...
