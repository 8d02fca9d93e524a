"""MXFP4 (OCP Microscaling Formats 1.0): gpt-oss, whose experts have ``_blocks`` and ``_scales``,
and modules of compressed-tensors."""

from __future__ import annotations

import msgspec

from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.fields import QuantFields
from kvasir.weights.quantization.parts import Given, Parts, whole_rows

BLOCK = 32
SCALES = ("U8", "F8_E8M0")


class Mxfp4Module(msgspec.Struct, frozen=True):
    """Codes two a byte, the even elements low; an exponent for each 32."""

    codes: TensorInfo
    scales: TensorInfo

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.codes, self.scales)

    def rows(self) -> memoryview:
        # Imported now: only who computes needs NumPy.
        from kvasir.weights.quantization.mxfp4_rows import mxfp4_rows

        return mxfp4_rows(self)


class Mxfp4(msgspec.Struct, frozen=True):
    """gpt-oss: matrices of all experts of a layer, [experts, outputs, blocks, 16]."""

    text: str = "MXFP4"
    ends: tuple[str, ...] = ("blocks", "scales")
    unread: tuple[str, ...] = ()
    joint: str = "_"

    def weight(self, module: str, parts: Parts) -> TensorInfo | None:
        """It has the name and the axes of the unquantized tensor, inputs before outputs, as
        ``weights/transforms.py`` asks; rows of blocks are of outputs whatever these say."""
        given = Given(module, parts)
        codes = given.part("blocks", ("U8",), 4)
        experts, n, blocks, width = codes.shape
        if width * 2 != BLOCK:
            raise given.error(f"has blocks of {width} bytes, expected {BLOCK // 2}")
        scales = given.shaped("scales", SCALES, (experts, n, blocks))
        shape = (experts, blocks * BLOCK, n)
        return TensorInfo(module, "MXFP4", shape, memoryview(b""), Mxfp4Module(codes, scales))


def mxfp4_tensor(given: Given, codes: str, scales: str) -> TensorInfo:
    """Of a matrix [outputs, inputs / 2]. Raises ModelError."""
    packed = given.part(codes, ("U8",), 2)
    n, k = packed.shape[0], packed.shape[1] * 2
    whole_rows(given, k)
    steps = given.shaped(scales, SCALES, (n, k // BLOCK))
    return given.made("MXFP4", (n, k), Mxfp4Module(packed, steps))


def read_mxfp4(fields: QuantFields) -> Mxfp4:
    return Mxfp4()
