"""Types of GGUF files that have the layouts of modules: NVFP4 (40), whose factor is beside it,
Q1_0 (41) and Q2_0 (42)."""

from __future__ import annotations

import math

import msgspec

from kvasir.core.errors import ModelError
from kvasir.formats.mapped import TensorTable
from kvasir.formats.types import BESIDE_FORMATS, TensorInfo

BECOMES = {"NVFP4": "NVFP4M", "Q1_0": "QG2_128", "Q2_0": "QG2_64"}
_SCALES = (".scale", ".input_scale")
"""Ends of names of the factor of weights, and of that of activations, which nothing needs."""


class GgufModule(msgspec.Struct, frozen=True):
    """Blocks as they lie in the file; ``factor``: one number, or one for each expert."""

    blocks: TensorInfo
    factor: TensorInfo | None = None

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.blocks, self.factor) if self.factor else (self.blocks,)

    def rows(self) -> memoryview:
        # Imported now: only who computes needs NumPy.
        from kvasir.weights.quantization.gguf_rows import gguf_rows

        return gguf_rows(self)


def with_gguf_modules(table: TensorTable) -> TensorTable:
    """Those types as formats of modules. Raises ModelError where a factor does not fit."""
    found = {info.name: info for info in table.listing()}
    if not any(info.format in BESIDE_FORMATS for info in found.values()):
        return table
    tensors = dict(found)
    for info in found.values():
        if info.format not in BESIDE_FORMATS:
            continue
        base = info.name.removesuffix(".weight")
        factor = found.get(base + _SCALES[0]) if info.format == "NVFP4" else None
        if info.format == "NVFP4":
            for end in _SCALES:
                tensors.pop(base + end, None)
        experts = info.shape[0] if len(info.shape) == 3 else 1
        if factor and (factor.format != "F32" or math.prod(factor.shape) not in (1, experts)):
            raise ModelError(
                f"tensor '{factor.name}' is {factor.format} of shape {list(factor.shape)}, "
                f"expected {experts} numbers of F32"
            )
        tensors[info.name] = info._replace(
            format=BECOMES[info.format], data=memoryview(b""), module=GgufModule(info, factor)
        )
    return TensorTable(tensors)
