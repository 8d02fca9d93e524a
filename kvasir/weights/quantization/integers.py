"""Modules of integers with scales and zeros: where they lie, and the format that they become."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.parts import HALVES, Given, whole_rows

Axis = Literal["inputs", "outputs"]


class CodeWords(msgspec.Struct, frozen=True):
    """Small integers in 32-bit words of a matrix, the first in the lowest bits."""

    tensor: TensorInfo
    bits: int
    axis: int
    """Of the matrix: along it the integers of a word and of the next one follow one another."""
    counts: Axis
    """What that axis counts."""
    order: tuple[int, ...] = ()
    """Which of a word's integers each stands for; empty: as they lie."""
    is_dense: bool = True
    """Three words hold 32 integers of 3 bits; else one holds 10."""
    less_one: bool = False
    """What is stored is one less than meant: of whole words, so with borrows between integers (of 3
    bits: of each)."""
    more: tuple[int, ...] = ()
    """Of 3 bits what is added to words in turns in place of that."""


class Numbers(msgspec.Struct, frozen=True):
    """Scales of groups."""

    tensor: TensorInfo
    by_input: bool
    """[groups, outputs]; else [outputs, groups]."""
    factor: float = 1.0


class IntegerModule(msgspec.Struct, frozen=True):
    """value = scale * (code - zero)."""

    format: str
    n: int
    k: int
    group: int
    """Inputs that share a scale."""
    codes: CodeWords | TensorInfo
    """A tensor: int8 [n, k], each less 128."""
    scales: Numbers
    zeros: CodeWords | int
    others: tuple[TensorInfo, ...] = ()
    """Which say nothing more."""
    g_idx: TensorInfo | None = None
    """The group of each input, where these are in another order: then columns of the rows are
    sorted by it (``weights/input_order.py`` sorts the inputs)."""
    feeds: IntegerModule | None = None
    """What reads the outputs, where it takes them in another order: then rows are in that."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        codes = self.codes.tensor if isinstance(self.codes, CodeWords) else self.codes
        zeros = (self.zeros.tensor,) if isinstance(self.zeros, CodeWords) else ()
        order = (self.g_idx,) if self.g_idx else ()
        return (codes, self.scales.tensor, *zeros, *order, *self.others)

    def rows(self) -> memoryview:
        # Imported now: only who computes needs NumPy.
        from kvasir.weights.quantization.integer_rows import integer_rows

        return integer_rows(self)


def integer_format(
    given: Given, bits: int, group: int, k: int, scales: str, is_centred: bool
) -> str:
    """Of rows of ``k`` codes; ``group`` of them share a scale of type ``scales``; ``is_centred``:
    the zero is half of the codes. Raises ModelError."""
    whole_rows(given, k)
    is_half = scales in HALVES
    if bits == 8 and not is_centred:
        if not is_half:
            raise given.error("has 8-bit codes with zeros and f32 scales, expected f16 or bf16")
        return "QZ"
    if group >= k and bits in (4, 8):
        return f"Q{bits}C"
    if not is_half:
        return "QS"
    block = next(n for n in (128, 64, 32) if k % n == 0 and (group >= k or group % n == 0))
    return f"QG{bits}_{block}"


def n_words(n: int, bits: int, is_dense: bool) -> int:
    """32-bit words of ``n`` integers."""
    return -(-n * bits // 32) if is_dense else -(-n // (32 // bits))


def is_sorted(tensor: TensorInfo) -> bool:
    """Whether columns of its rows are in another order than the inputs."""
    return isinstance(tensor.module, IntegerModule) and tensor.module.g_idx is not None
