"""Number formats of stored tensors: how their bytes lie. ``formats/decode.py`` has their values."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from kvasir.core.errors import ModelError

SUPER = 256
"""Elements of a super-block."""


class Format(NamedTuple):
    """How a row is stored: every ``block`` consecutive elements take ``block_bytes`` bytes."""

    name: str
    block: int
    block_bytes: int
    ggml_type: int = -1
    """Its number in GGUF files; -1 for what modules of checkpoints are made to."""
    kind: str = "integers"
    """Of a block: integers or floats with scales."""

    @property
    def has_integers(self) -> bool:
        """Blocks are integers with scales; else floats with a scale, or one each."""
        return self.block > 1 and self.kind == "integers"

    @property
    def is_quantized(self) -> bool:
        """Has scales."""
        return self.block > 1

    def n_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of ``shape`` (its last axis must be a multiple of ``block``)."""
        return math.prod(shape) // self.block * self.block_bytes


class Module(Protocol):
    """Tensors of a file that are the weight of one module together."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """As they lie in the file."""
        ...

    def rows(self) -> memoryview:
        """Its rows of blocks in the format of their ``TensorInfo``, 1-D bytes, made anew. Raises
        ModelError for numbers that no weight has."""
        ...


class TensorInfo(NamedTuple):
    """A tensor in a mapped file. ``data`` stays valid for as long as it is referenced."""

    name: str
    format: str
    """A key of ``FORMATS``."""
    shape: tuple[int, ...]
    """Outermost first: (N, K) for a linear of K inputs and N outputs; () for a scalar."""
    data: memoryview
    """Bytes of the mapping, read-only, 1-D; their address may be unaligned in safetensors files."""
    module: Module | None = None
    """What the bytes are made of, where no tensor of the file has them; then ``data`` is empty."""

    @property
    def n_bytes(self) -> int:
        """In the file."""
        parts = self.module.tensors if self.module else ()
        return self.data.nbytes + sum(part.n_bytes for part in parts)


STORED: dict[str, Format] = {
    name: Format(name, block, block_bytes, ggml_type)
    for name, block, block_bytes, ggml_type in (
        ("F32", 1, 4, 0),
        ("F16", 1, 2, 1),
        ("BF16", 1, 2, 30),
        ("Q4_0", 32, 18, 2),
        ("Q4_1", 32, 20, 3),
        ("Q5_0", 32, 22, 6),
        ("Q5_1", 32, 24, 7),
        ("Q8_0", 32, 34, 8),
        ("Q2_K", SUPER, 84, 10),
        ("Q3_K", SUPER, 110, 11),
        ("Q4_K", SUPER, 144, 12),
        ("Q5_K", SUPER, 176, 13),
        ("Q6_K", SUPER, 210, 14),
        ("IQ4_NL", 32, 18, 20),
        ("IQ4_XS", SUPER, 136, 23),
        ("IQ3_S", SUPER, 110, 21),
        ("IQ3_XXS", SUPER, 98, 18),
        ("IQ2_XXS", SUPER, 66, 16),
        ("IQ2_XS", SUPER, 74, 17),
        ("IQ2_S", SUPER, 82, 22),
        ("IQ1_S", SUPER, 50, 19),
        ("IQ1_M", SUPER, 56, 29),
        ("TQ1_0", SUPER, 54, 34),
        ("TQ2_0", SUPER, 66, 35),
        ("MXFP4", 32, 17, 39),
    )
}

MODULE_FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        *(Format(f"QG{bits}_{n}", n, n + 5) for bits in (2, 3, 4, 8) for n in (32, 64, 128)),
        Format("Q4C", 32, 37),
        Format("Q8C", 32, 37),
        Format("QS", 32, 37),
        Format("QZ", 32, 37),
        Format("NVFP4M", 32, 22),
        Format("NVFP4D", 32, 22),
        Format("F8C", 32, 36, kind="floats"),
        Format("F8_32", 32, 36, kind="floats"),
        Format("F8_128", 128, 132, kind="floats"),
        Format("NF4", 64, 36, kind="floats"),
        Format("FP4", 64, 36, kind="floats"),
    )
}
"""What modules of quantized checkpoints become (``formats/modules.py``), in no file."""

FORMATS: dict[str, Format] = STORED | MODULE_FORMATS

BESIDE_FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("NVFP4", 64, 36, 40),
        Format("Q1_0", 128, 18, 41),
        Format("Q2_0", 64, 18, 42),
    )
}
"""GGUF's newest types; ``weights/quantization/gguf_blocks.py`` makes formats of modules of them."""

GGML_TYPES: dict[int, str] = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
} | {x.ggml_type: x.name for x in (*STORED.values(), *BESIDE_FORMATS.values())}  # fmt: skip
"""Names of the type ids of GGUF files, supported or not."""


def unsupported(tensor: str, format: str) -> ModelError:
    """The error for a tensor of a known type that no code here can read."""
    return ModelError(
        f"tensor '{tensor}' has type {format}, which is not supported "
        f"(supported: {', '.join(STORED)}): use the model in one of these formats",
        code="unsupported_format",
    )
