"""AWQ: https://arxiv.org/abs/2306.00978, as AutoAWQ writes it.

``gemm`` has words along the outputs, in an order of its kernel; ``gemv`` along the inputs, and its
scales and zeros are padded.
"""

from __future__ import annotations

import msgspec

from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.fields import UNQUANTIZED, QuantFields
from kvasir.weights.quantization.gptq import scheme_text
from kvasir.weights.quantization.integers import CodeWords, IntegerModule, Numbers, integer_format
from kvasir.weights.quantization.parts import FLOATS, INTS, Given, Parts

GEMM_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output of each nibble of a word, from the lowest on."""
_PER_WORD = 8


class Awq(msgspec.Struct, frozen=True):
    """4 bits with zeros; ``group`` 0: the whole row."""

    group: int
    is_gemv: bool
    ends: tuple[str, ...] = ("qweight", "qzeros", "scales")
    unread: tuple[str, ...] = ()
    joint: str = "."

    @property
    def text(self) -> str:
        return scheme_text("AWQ", 4, self.group)

    def weight(self, module: str, parts: Parts) -> TensorInfo | None:
        given = Given(module, parts)
        words = given.part("qweight", INTS, 2)
        return self._gemv(given, words) if self.is_gemv else self._gemm(given, words)

    def _gemm(self, given: Given, words: TensorInfo) -> TensorInfo:
        k, n = words.shape[0], words.shape[1] * _PER_WORD
        group = self.group or k
        groups = -(-k // group)
        scales = given.shaped("scales", FLOATS, (groups, n))
        zeros = given.shaped("qzeros", INTS, (groups, n // _PER_WORD))
        form = integer_format(given, 4, group, k, scales.format, is_centred=False)
        found = IntegerModule(
            *(form, n, k, group),
            CodeWords(words, 4, 1, "outputs", GEMM_ORDER),
            Numbers(scales, by_input=True),
            CodeWords(zeros, 4, 1, "outputs", GEMM_ORDER),
        )
        return given.made(form, (n, k), found)

    def _gemv(self, given: Given, words: TensorInfo) -> TensorInfo:
        n, k = words.shape[0], words.shape[1] * _PER_WORD
        group = self.group or k
        scales, zeros = given.part("scales", FLOATS, 2), given.part("qzeros", INTS, 2)
        width = zeros.shape[1] * _PER_WORD
        if scales.shape != (n, width) or zeros.shape[0] != n or width < -(-k // group):
            raise given.error(
                f"has scales of shape {list(scales.shape)} and qzeros of {list(zeros.shape)}, "
                f"too few for {n} outputs of {-(-k // group)} groups"
            )
        form = integer_format(given, 4, group, k, scales.format, is_centred=False)
        found = IntegerModule(
            *(form, n, k, group),
            CodeWords(words, 4, 1, "inputs"),
            Numbers(scales, by_input=False),
            CodeWords(zeros, 4, 1, "inputs"),
        )
        return given.made(form, (n, k), found)


def read_awq(fields: QuantFields) -> Awq:
    """Raises ModelError."""
    fields.one_of((4,), "bits", "w_bit")
    if not fields.flag("zero_point", True):
        raise fields.error("zero_point", False, "true")
    backend = fields.raw("backend")
    if backend not in (None, "autoawq", "gptqmodel", "auto"):
        raise fields.error("backend", backend, f"autoawq: {UNQUANTIZED}")
    version = str(fields.raw("version", "checkpoint_format", "format") or "gemm").lower()
    if version not in ("gemm", "gemv", "exllama", "ipex", "triton"):
        raise fields.error(
            "version", version, f"gemm or gemv, others are orders of single kernels: {UNQUANTIZED}"
        )
    return Awq(fields.group("group_size", "q_group_size", default=128), version == "gemv")
