"""Codes, scales and zeros of one container in another: no weight changes, nothing is rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeGuard

import msgspec
import numpy as np

from kvasir.checkpoints.loaded import LoadedModel
from kvasir.core.errors import ConfigError, ModelError
from kvasir.formats.types import TensorInfo
from kvasir.quantize.choose import Selection
from kvasir.quantize.containers import CodedRows, Container, GroupForm
from kvasir.quantize.target import MadeTensor, Matrix, RowMethod, Scheme
from kvasir.weights.quantization.integer_rows import integers, scales_of
from kvasir.weights.quantization.integers import CodeWords, IntegerModule

_BITS = (2, 4, 8)
"""Of which words of 32 bits hold whole ones."""


class Repack(msgspec.Struct, frozen=True):
    """What is asked for."""

    container: Container

    @property
    def name(self) -> str:
        return f"repacked as {self.container.name}"


class Repacked(msgspec.Struct, frozen=True):
    """A model's matrices, all of one form."""

    container: Container
    form: GroupForm
    modules: Mapping[str, IntegerModule]
    """By their tensors."""

    @property
    def name(self) -> str:
        return Repack(self.container).name

    @property
    def format(self) -> str:
        return self.container.format

    @property
    def multiple(self) -> int:
        return 32

    def config(self, kept: Sequence[str]) -> Scheme:
        return self.container.config(self.form, kept)

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        order = self.modules[tensor].g_idx
        data = None if order is None else bytes(order.data)
        return self.container.targets(tensor, shape, self.form, data)

    def of(self, info: TensorInfo) -> RowMethod | None:
        """None for tensors that stay as they are."""
        return RepackedTensor(self, info.name) if info.name in self.modules else None


class RepackedTensor:
    """The row method of one matrix."""

    def __init__(self, method: Repacked, tensor: str) -> None:
        self._method, self._tensor, self._at = method, tensor, 0
        self._rows: list[CodedRows] = []

    @property
    def name(self) -> str:
        return self._method.name

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        return self._method.targets(tensor, shape)

    def begin(self) -> None:
        self._at, self._rows = 0, [self._coded(self._method.modules[self._tensor])]

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        """``rows`` are counted."""
        begin, self._at = self._at, self._at + len(rows)
        codes, scales, zeros = self._rows[0]
        end = self._at
        run = CodedRows(codes[begin:end], scales[begin:end], zeros[begin:end])
        return self._method.container.packed(run, self._method.form)

    def end(self) -> None:
        self._rows = []

    def _coded(self, module: IntegerModule) -> CodedRows:
        """Raises ModelError for scales that the container's type does not have."""
        assert isinstance(module.codes, CodeWords)
        codes = integers(module.codes, module)[:, : module.k].astype(np.uint32)
        groups, zeros = self._method.form.n_groups(module.k), module.zeros
        scales = np.ascontiguousarray(scales_of(module.scales)[:, :groups])  # gemv's are padded
        if self._method.form.scales == "F16":
            with np.errstate(over="ignore"):
                near = scales.astype(np.float16).astype(np.float32)
            if not np.array_equal(near, scales):
                raise ModelError(
                    f"{self._tensor} has scales of {module.scales.tensor.format} that are no "
                    f"numbers of F16, which {self._method.container.name} has: take "
                    "--container compressed-tensors or gptq"
                )
        stored = (
            np.full(scales.shape, zeros, np.uint32)
            if isinstance(zeros, int)
            else integers(zeros, module)[:, :groups].astype(np.uint32)
        )
        return CodedRows(codes, scales, stored)


def repacked(model: LoadedModel, container: Container) -> tuple[Repacked, Selection]:
    """Raises ConfigError where the model has no integers in groups, or not of one form."""
    infos = model.source.tensors.listing()
    modules = {x.name: x.module for x in infos if x.module is not None}
    if not modules:
        raise ConfigError(
            f"{model.source.path} is not quantized: repack changes the container of GPTQ, AWQ and "
            "pack-quantized folders; take rtn, gptq or awq"
        )
    found = {x: m for x, m in modules.items() if _is_packed(m)}
    other = next((x for x in modules if x not in found), None)
    if other is not None:
        raise ConfigError(
            f"{other} is {model.source.tensors[other].format}: repack changes the container of "
            "integers of 2, 4 and 8 bits in 32-bit words (GPTQ, AWQ, pack-quantized); others have "
            "no other container that says the same numbers"
        )
    group = _group(found)
    forms = {name: _form(module, group, container) for name, module in found.items()}
    first = next(iter(forms.values()))
    unlike = next((x for x, form in forms.items() if form != first), None)
    if unlike is not None:
        raise ConfigError(
            f"{unlike} has {_said(forms[unlike])}, others {_said(first)}: a container is written "
            "for one form of all matrices"
        )
    kept = tuple(x.name for x in infos if len(x.shape) > 1 and x.name not in found)
    method = Repacked(container, first, MappingProxyType(found))
    return method, Selection(tuple(found), kept, ())


def _is_packed(module: object) -> TypeGuard[IntegerModule]:
    if not isinstance(module, IntegerModule) or not isinstance(module.codes, CodeWords):
        return False
    return module.codes.bits in _BITS


def _group(modules: Mapping[str, IntegerModule]) -> int:
    """0: the whole row of each. Raises ConfigError where they have no size in common."""
    if all(module.group >= module.k for module in modules.values()):
        return 0
    sizes = {module.group for module in modules.values()}
    if len(sizes) > 1 or any(module.k % module.group for module in modules.values()):
        raise ConfigError(
            f"groups have {', '.join(map(str, sorted(sizes)))} inputs: a container is written for "
            "one size that divides all rows"
        )
    return sizes.pop()


def _form(module: IntegerModule, group: int, container: Container) -> GroupForm:
    assert isinstance(module.codes, CodeWords)
    return GroupForm(
        module.codes.bits,
        group,
        isinstance(module.zeros, int),
        "F16" if container.name == "awq" else module.scales.tensor.format,
        module.g_idx is not None,
    )


def _said(form: GroupForm) -> str:
    zeros = "without" if form.is_symmetric else "with"
    order = ", inputs in another order" if form.has_order else ""
    return f"{form.bits} bits in groups of {form.group or 'a row'} {zeros} zeros{order}"
