"""What columns of a GGUF file's tensors meet, which says how much their errors count."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

from kvasir.quantize.statistics import Statistics, Vector


class Important:
    """Mean squares of inputs, of a text that is read when the first is asked for."""

    def __init__(
        self, tensors: Sequence[str], calibrate: Callable[[Sequence[str]], Statistics]
    ) -> None:
        """``tensors`` in the order in which they are written."""
        self._tensors, self._calibrate = tensors, calibrate

    @cached_property
    def statistics(self) -> Statistics:
        return self._calibrate(self._tensors)

    @property
    def rounded(self) -> tuple[str, ...]:
        """Tensors of whose inputs nothing is known: their weights alone count."""
        return tuple(x for x in self._tensors if not self.statistics.knows(x))

    def skip(self, done: Collection[str]) -> None:
        """Tensors that are written."""
        self.statistics.forget(done)

    def squares(self, tensor: str) -> Vector | None:
        inputs = self.statistics.inputs(tensor)
        return None if inputs is None else inputs.squares
