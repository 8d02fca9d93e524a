"""What modules are made of, and checks of it that need no value: shapes, types, bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from kvasir.core.errors import ModelError
from kvasir.formats.types import Module, TensorInfo

Parts = Mapping[str, TensorInfo]
"""Tensors of a module by what follows its name."""
INTS = ("I32",)
HALVES = ("F16", "BF16")
FLOATS = (*HALVES, "F32")
OF_ACTIVATIONS = (
    *("input_scale", "input_zero_point", "input_global_scale", "output_scale", "activation_scale"),
    *("input_scale_ub", "k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point"),
)
"""Ends of names of scales of activations and of the KV cache."""


class Method(Protocol):
    """A way of checkpoints to store modules."""

    @property
    def text(self) -> str:
        """Such as "GPTQ, 4 bits in groups of 128"."""
        ...

    @property
    def ends(self) -> tuple[str, ...]:
        """What may follow the name of a module, and its ``joint``."""
        ...

    @property
    def joint(self) -> str:
        """A dot, mostly."""
        ...

    @property
    def unread(self) -> tuple[str, ...]:
        """More of that, which nothing here needs: scales of activations and of the KV cache, which
        are made as they come."""
        ...

    def weight(self, module: str, parts: Parts) -> TensorInfo | None:
        """The weight that ``parts`` are; None where they are what they are called. Raises
        ModelError."""
        ...


class Given(NamedTuple):
    """A module and its tensors, with checks that name it."""

    name: str
    parts: Parts

    def part(self, end: str, types: tuple[str, ...], rank: int | None = None) -> TensorInfo:
        """Raises ModelError when it is missing or of another type or rank."""
        if end not in self.parts:
            raise self.error(f"lacks {end}: download the complete model")
        info = self.parts[end]
        if info.format not in types:
            raise self.error(f"has {end} of {info.format}, expected {' or '.join(types)}")
        if rank is not None and len(info.shape) != rank:
            raise self.error(f"has {end} of shape {list(info.shape)}, expected {rank} axes")
        return info

    def shaped(self, end: str, types: tuple[str, ...], shape: tuple[int, ...]) -> TensorInfo:
        """Raises ModelError when it has another shape."""
        info = self.part(end, types)
        if info.shape != shape:
            raise self.error(
                f"has {end} of shape {list(info.shape)}, its other tensors need {list(shape)}"
            )
        return info

    def error(self, what: str) -> ModelError:
        return ModelError(f"module '{self.name}' {what}", code="model_tensors")

    def made(self, format_name: str, shape: tuple[int, ...], module: Module) -> TensorInfo:
        return TensorInfo(f"{self.name}.weight", format_name, shape, memoryview(b""), module)


def whole_rows(given: Given, k: int) -> None:
    """Raises ModelError where rows are no runs of 32, which every layout has."""
    if k < 32 or k % 32:
        raise given.error(f"has rows of {k} elements, layouts of blocks need multiples of 32")
