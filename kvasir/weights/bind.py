"""Joins the weights of a program with the tensors of a model file, without loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from kvasir.core.errors import ModelError
from kvasir.formats.decode import Floats, bytes_of
from kvasir.formats.types import FORMATS, TensorInfo
from kvasir.ir.program import Weight
from kvasir.weights.shapes import shape_before
from kvasir.weights.source import ModelSource
from kvasir.weights.transforms import MOVES_COLUMNS, RawTensor, apply

_SHOWN = 12
"""Names of a kind that an error lists."""


class BoundWeight(msgspec.Struct, frozen=True):
    """A weight and the tensors it is made of."""

    weight: Weight
    tensors: tuple[TensorInfo, ...]

    @property
    def format(self) -> str:
        """Of what ``raw`` gives: the file's, which all tensors share, but where columns move."""
        stored = self.tensors[0].format
        moves = any(step.name in MOVES_COLUMNS for step in self.weight.transforms)
        return "F32" if moves and FORMATS[stored].block > 1 else stored

    def raw(self) -> RawTensor:
        """Stored rows after the transforms; a view of the file where nothing has to move."""
        if len(self.tensors) == 1:
            data = bytes_of(self.tensors[0])
        else:
            data = np.concatenate([bytes_of(tensor) for tensor in self.tensors])
        shape = shape_before(self.weight.shape, self.weight.transforms)
        stored = RawTensor(self.tensors[0].format, shape, data)
        return apply(stored, self.weight.transforms)

    def dequantize(self) -> Floats:
        """The values, f32 of the weight's shape."""
        return self.raw().decode()


class Binding(msgspec.Struct, frozen=True):
    """Every weight of a program, by name, and the model that they are of."""

    weights: Mapping[str, BoundWeight]
    source: ModelSource | None = None
    """None for weights that no file holds."""
    others: tuple[Binding, ...] = ()
    """Of programs beside it, whose weights are of models of their own."""

    @property
    def parts(self) -> tuple[Binding, ...]:
        """Each of one model."""
        return (self, *self.others)

    def __getitem__(self, name: str) -> BoundWeight:
        own = next((part.weights for part in self.parts if name in part.weights), self.weights)
        return own[name]

    def release(self) -> None:
        """Give back the memory of tensor data that was read."""
        for part in self.parts:
            if part.source is not None:
                part.source.release()

    def named(self, prefix: str) -> Binding:
        """With ``prefix`` in front of the names."""
        return replace(self, weights={prefix + name: x for name, x in self.weights.items()})

    def formats(self) -> dict[str, str]:
        """File format of each weight, as ``place_weights`` wants it."""
        weights = (pair for part in reversed(self.parts) for pair in part.weights.items())
        return {name: bound.format for name, bound in weights}


class Weighed(Protocol):
    """A program, or several."""

    @property
    def name(self) -> str: ...

    @property
    def weights(self) -> Mapping[str, Weight]: ...


def bind(
    program: Weighed, source: ModelSource, ignorable: Callable[[str], bool] = lambda name: False
) -> Binding:
    """Finds the tensors of every weight.

    Raises one ModelError that lists all missing tensors, wrong shapes, and tensors that no weight
    uses (unless ``ignorable`` says that they hold nothing the program needs).
    """
    weights = program.weights.values()
    needed = {name for weight in weights for name in weight.sources}
    problems = [
        *_listed("missing", sorted(name for name in needed if name not in source.tensors)),
        *_listed(
            "of wrong shape",
            [problem for weight in weights for problem in _misfits(weight, source)],
        ),
        *_listed(
            "unexpected",
            sorted(
                name
                for name in source.tensors
                if not (name in needed or ignorable(name) or _adds_nothing(source, name))
            ),
        ),
    ]
    if problems:
        raise ModelError(
            f"{source.path}: the tensors do not fit what its config describes ({program.name}): "
            f"{'; '.join(problems)}. Check that the download is complete and the config its own",
            code="model_tensors",
        )
    return Binding({weight.name: _bound(weight, source) for weight in weights}, source)


def _adds_nothing(source: ModelSource, name: str) -> bool:
    """A bias of zeros beside a quantized module of a model that has none: writers of GPTQ leave
    them."""
    weight = f"{name.removesuffix('.bias')}.weight"
    if not name.endswith(".bias") or weight not in source.tensors:
        return False
    is_made = source.tensors[weight].module is not None
    return is_made and not bytes_of(source.tensors[name]).any()


def _listed(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{more}"]


def _misfits(weight: Weight, source: ModelSource) -> list[str]:
    """Axes of one element do not count: a vector may be a matrix of one row."""
    whole = shape_before(weight.shape, weight.transforms)
    expected = whole if len(weight.sources) == 1 else whole[1:]
    tensors = [source.tensors[name] for name in weight.sources if name in source.tensors]
    return [
        f"{t.name} {list(t.shape)}, expected {list(expected)}"
        for t in tensors
        if _without_ones(t.shape) != _without_ones(expected)
    ]


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _bound(weight: Weight, source: ModelSource) -> BoundWeight:
    tensors = tuple(source.tensors[name] for name in weight.sources)
    formats = sorted({tensor.format for tensor in tensors})
    if len(formats) > 1:
        raise ModelError(
            f"{source.path}: the tensors of {weight.name} ({tensors[0].name}, ...) have formats "
            f"{', '.join(formats)}: experts of one layer must share one"
        )
    return BoundWeight(weight, tensors)
