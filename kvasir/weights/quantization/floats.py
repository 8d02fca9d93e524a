"""Modules of eight- and four-bit floats: where codes and scales lie, and what they become."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.parts import FLOATS, Given, whole_rows

F8 = ("F8_E4M3",)
F8_SCALES = (*FLOATS, "F8_E8M0")


class F8Module(msgspec.Struct, frozen=True):
    """value = scale * e4m3."""

    format: str
    n: int
    k: int
    codes: TensorInfo
    """[n, k]"""
    scales: TensorInfo
    block: tuple[int, int]
    """Outputs and inputs that share a scale; the last block may have fewer."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.codes, self.scales)

    def rows(self) -> memoryview:
        # Imported now: only who computes needs NumPy.
        from kvasir.weights.quantization.float_rows import f8_rows

        return f8_rows(self)


class Nvfp4Module(msgspec.Struct, frozen=True):
    """value = (e4m3 * factor) * e2m1, or (e4m3 / factor) * e2m1, as ``format`` says."""

    format: str
    n: int
    k: int
    codes: TensorInfo
    """u8 [n, k / 2], the even elements low."""
    scales: TensorInfo
    """e4m3 [n, k / 16]"""
    factor: TensorInfo
    """One number."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.codes, self.scales, self.factor)

    def rows(self) -> memoryview:
        from kvasir.weights.quantization.float_rows import nvfp4_rows

        return nvfp4_rows(self)


def f8_tensor(given: Given, scale: str, block: tuple[int, int] | None) -> TensorInfo:
    """Of ``weight`` and the tensor ``scale``: one number, one for each output, or one for each
    ``block`` of outputs and inputs. Raises ModelError."""
    codes = given.part("weight", F8, 2)
    scales = given.part(scale, F8_SCALES)
    n, k = codes.shape
    whole_rows(given, k)
    size = math.prod(scales.shape)
    if size == 1:
        form, used = "F8C", (n, k)
    elif size == n and scales.shape[0] == n:
        form, used = "F8C", (1, k)
    elif block is None:
        raise given.error(
            f"has {scale} of shape {list(scales.shape)} for {n} outputs of {k} inputs, expected "
            f"one number or {n}"
        )
    else:
        used, (rows, columns) = block, block
        given.shaped(scale, F8_SCALES, (-(-n // rows), -(-k // columns)))
        form = "F8_128" if k % 128 == 0 and columns % 128 == 0 else "F8_32"
    return given.made(form, (n, k), F8Module(form, n, k, codes, scales, used))


def nvfp4_tensor(given: Given, codes: str, factor: str, how: Literal["M", "D"]) -> TensorInfo:
    """``how``: M where the tensor ``factor`` multiplies the scales, D where it divides them."""
    packed = given.part(codes, ("U8",), 2)
    n, k = packed.shape[0], packed.shape[1] * 2
    whole_rows(given, k)
    scales = given.shaped("weight_scale", F8, (n, k // 16))
    number = given.part(factor, ("F32",))
    if number.data.nbytes != 4:
        raise given.error(f"has {factor} of shape {list(number.shape)}, expected one number")
    form = f"NVFP4{how}"
    return given.made(form, (n, k), Nvfp4Module(form, n, k, packed, scales, number))
