"""FP8 checkpoints: ``fp8`` (DeepSeek, Qwen: one scale, or one per 128 x 128), ``fbgemm_fp8`` (one
per output), and NVIDIA's ModelOpt, which also has NVFP4."""

from __future__ import annotations

import msgspec

from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.fields import UNQUANTIZED, QuantFields
from kvasir.weights.quantization.floats import F8, f8_tensor, nvfp4_tensor
from kvasir.weights.quantization.parts import OF_ACTIVATIONS, Given, Parts

_SCALES = ("weight_scale_inv", "weight_scale")


class Fp8(msgspec.Struct, frozen=True):
    """``block``: outputs and inputs that share a scale; None: a tensor, or an output."""

    name: str
    block: tuple[int, int] | None = None
    ends: tuple[str, ...] = ("weight", *_SCALES)
    unread: tuple[str, ...] = OF_ACTIVATIONS
    joint: str = "."

    @property
    def text(self) -> str:
        scales = f"a scale per {self.block[0]} x {self.block[1]}" if self.block else "e4m3"
        return f"{self.name}, {scales}"

    def weight(self, module: str, parts: Parts) -> TensorInfo | None:
        if "weight" not in parts or parts["weight"].format not in F8:
            return None
        given = Given(module, parts)
        scale = next((end for end in _SCALES if end in parts), _SCALES[1])
        return f8_tensor(given, scale, self.block)


class Nvfp4(msgspec.Struct, frozen=True):
    """ModelOpt's: the second scale multiplies."""

    text: str = "ModelOpt NVFP4, groups of 16"
    ends: tuple[str, ...] = ("weight", "weight_scale", "weight_scale_2")
    unread: tuple[str, ...] = OF_ACTIVATIONS
    joint: str = "."

    def weight(self, module: str, parts: Parts) -> TensorInfo | None:
        if "weight" not in parts or parts["weight"].format != "U8":
            return None
        return nvfp4_tensor(Given(module, parts), "weight", "weight_scale_2", "M")


def read_fp8(fields: QuantFields) -> Fp8:
    """Raises ModelError."""
    fields.one_of(("e4m3",), "fmt", default="e4m3")
    size = fields.raw("weight_block_size")
    if size is None:
        return Fp8("FP8")
    return Fp8("FP8", block_of(fields, "weight_block_size", size))


def block_of(fields: QuantFields, name: str, size: object) -> tuple[int, int]:
    """Outputs and inputs that share a scale. Raises ModelError."""
    fits = isinstance(size, list) and len(size) == 2 and all(type(x) is int for x in size)
    if not fits or not isinstance(size, list) or not all(1 <= x <= 1 << 16 for x in size):
        raise fields.error(name, size, "two numbers of elements")
    if size[1] % 32:
        raise fields.error(name, size, "multiples of 32 inputs")
    return size[0], size[1]


def read_fbgemm(fields: QuantFields) -> Fp8:
    return Fp8("FBGEMM FP8")


def read_modelopt(fields: QuantFields) -> Fp8 | Nvfp4:
    """Of config.json, or of the ``quantization`` of hf_quant_config.json. Raises ModelError."""
    algorithm = fields.one_of(("FP8", "NVFP4"), "quant_algo")
    if algorithm == "FP8":
        return Fp8("ModelOpt FP8")
    size = fields.raw("group_size")
    if size not in (None, 16):
        raise fields.error("group_size", size, f"16: {UNQUANTIZED}")
    return Nvfp4()
