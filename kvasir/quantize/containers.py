"""Where codes, scales and zeros of groups lie in a file: compressed-tensors' ``pack-quantized``,
GPTQ's two versions, AWQ's ``gemm``. Each says the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import ConfigError
from kvasir.quantize.compressed import compressed_config, module_of
from kvasir.quantize.target import MadeTensor, Matrix, Scheme, finite_scales
from kvasir.weights.quantization.awq import GEMM_ORDER

Words = NDArray[np.uint32]
_SIZES: Mapping[str, int] = MappingProxyType({"BF16": 2, "F16": 2, "F32": 4})


class GroupForm(NamedTuple):
    """Of the matrices of a file."""

    bits: int
    group: int
    """Inputs that share a scale; 0: all of a row."""
    is_symmetric: bool
    scales: str
    """BF16, F16 or F32."""
    has_order: bool = False
    """Inputs of a group do not lie together (act-order)."""

    def n_groups(self, k: int) -> int:
        return k // self.group if self.group else 1


class CodedRows(NamedTuple):
    """A weight is scale * (code - zero)."""

    codes: Words
    """[n, K]"""
    scales: Matrix
    """[n, groups], numbers of the form's type."""
    zeros: Words
    """[n, groups]"""


class Container(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def format(self) -> str:
        """As messages call it."""
        ...

    @property
    def scales(self) -> str:
        """The type of scales that its readers know best."""
        ...

    def targets(
        self, tensor: str, shape: tuple[int, ...], form: GroupForm, order: bytes | None = None
    ) -> tuple[MadeTensor, ...]:
        """``order``: the group of each input as i32, where they are not in their order. Raises
        ConfigError for what it has no room for."""
        ...

    def packed(self, rows: CodedRows, form: GroupForm) -> tuple[bytes, ...]:
        """Of the targets without a constant, in their order; a multiple of 32 rows, or the last."""
        ...

    def config(self, form: GroupForm, kept: Sequence[str]) -> Scheme: ...


class PackQuantized(NamedTuple):
    """compressed-tensors: words along the inputs, zeros along the outputs."""

    name: str = "compressed-tensors"
    format: str = "pack-quantized"
    scales: str = "BF16"

    def targets(
        self, tensor: str, shape: tuple[int, ...], form: GroupForm, order: bytes | None = None
    ) -> tuple[MadeTensor, ...]:
        n, k = shape
        module, groups, words = module_of(tensor), form.n_groups(k), k * form.bits // 32
        size, width = np.array([n, k], "<i8").tobytes(), _SIZES[form.scales]
        found: tuple[MadeTensor, ...] = (
            MadeTensor(f"{module}.weight_packed", "I32", (n, words), 4 * n * words),
            MadeTensor(f"{module}.weight_scale", form.scales, (n, groups), width * n * groups),
        )
        if not form.is_symmetric:
            rows = -(-n * form.bits // 32)
            zeros = MadeTensor(
                f"{module}.weight_zero_point", "I32", (rows, groups), 4 * rows * groups
            )
            found = (*found, zeros)
        if order is not None:
            found = (*found, MadeTensor(f"{module}.weight_g_idx", "I32", (k,), 4 * k, order))
        return (*found, MadeTensor(f"{module}.weight_shape", "I64", (2,), 16, size))

    def packed(self, rows: CodedRows, form: GroupForm) -> tuple[bytes, ...]:
        found = (words_of(rows.codes, form.bits).tobytes(), stored(rows.scales, form.scales))
        return found if form.is_symmetric else (*found, _zero_words(rows, form).tobytes())

    def config(self, form: GroupForm, kept: Sequence[str]) -> Scheme:
        weights: Scheme = {
            **{"num_bits": form.bits, "type": "int", "symmetric": form.is_symmetric},
            **({"strategy": "group", "group_size": form.group} if form.group else {}),
            **({} if form.group else {"strategy": "channel"}),
            **({"actorder": "group"} if form.has_order else {}),
            "dynamic": False,
        }
        return compressed_config(self.format, weights, None, kept)


class GptqWords(NamedTuple):
    """GPTQ: words along the inputs, zeros along the outputs, both turned."""

    name: str
    less_one: bool
    """Zeros are stored less one, of whole words: the first version."""
    scales: str = "F16"

    @property
    def format(self) -> str:
        return self.name

    def targets(
        self, tensor: str, shape: tuple[int, ...], form: GroupForm, order: bytes | None = None
    ) -> tuple[MadeTensor, ...]:
        n, k = shape
        _check_outputs(self.name, tensor, n, 32)
        module, groups, wide = module_of(tensor), form.n_groups(k), _SIZES[form.scales]
        words, zeros = k * form.bits // 32, n * form.bits // 32
        ascending = (np.arange(k) // (form.group or k)).astype("<i4").tobytes()
        return (
            MadeTensor(f"{module}.qweight", "I32", (words, n), 4 * words * n, turned=4),
            MadeTensor(f"{module}.scales", form.scales, (groups, n), wide * groups * n, None, wide),
            MadeTensor(f"{module}.qzeros", "I32", (groups, zeros), 4 * groups * zeros, turned=4),
            MadeTensor(f"{module}.g_idx", "I32", (k,), 4 * k, order or ascending),
        )

    def packed(self, rows: CodedRows, form: GroupForm) -> tuple[bytes, ...]:
        zeros = _zero_words(rows, form)
        if self.less_one:
            zeros = zeros - np.uint32(sum(1 << i for i in range(0, 32, form.bits)))
        words = words_of(rows.codes, form.bits)
        return words.tobytes(), stored(rows.scales, form.scales), zeros.tobytes()

    def config(self, form: GroupForm, kept: Sequence[str]) -> Scheme:
        return {
            "quant_method": "gptq",
            "bits": form.bits,
            "group_size": form.group or -1,
            "sym": form.is_symmetric,
            "desc_act": form.has_order,
            "lm_head": "lm_head" not in kept,
            "checkpoint_format": self.name,
            "pack_dtype": "int32",
            "meta": {"quantizer": ["kvasir"]},
        }


class AwqWords(NamedTuple):
    """AWQ's ``gemm``: words along the outputs, in the order of its kernel."""

    name: str = "awq"
    format: str = "awq"
    scales: str = "F16"

    def targets(
        self, tensor: str, shape: tuple[int, ...], form: GroupForm, order: bytes | None = None
    ) -> tuple[MadeTensor, ...]:
        n, k = shape
        _check_outputs(self.name, tensor, n, 8)
        if form.bits != 4:
            raise ConfigError(f"awq has 4 bits, not {form.bits}: take another --container")
        if order is not None:
            raise ConfigError(
                f"{tensor} has its inputs in another order (act-order), which awq has no room for: "
                "take --container gptq or compressed-tensors"
            )
        module, groups, words = module_of(tensor), form.n_groups(k), n // 8
        return (
            MadeTensor(f"{module}.qweight", "I32", (k, words), 4 * k * words, turned=4),
            MadeTensor(f"{module}.scales", "F16", (groups, n), 2 * groups * n, turned=2),
            MadeTensor(f"{module}.qzeros", "I32", (groups, words), 4 * groups * words, turned=4),
        )

    def packed(self, rows: CodedRows, form: GroupForm) -> tuple[bytes, ...]:
        codes, zeros = (_gemm_words(x).tobytes() for x in (rows.codes, rows.zeros))
        return codes, stored(rows.scales, "F16"), zeros

    def config(self, form: GroupForm, kept: Sequence[str]) -> Scheme:
        return {
            "quant_method": "awq",
            "bits": form.bits,
            "group_size": form.group or -1,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": list(kept),
        }


PACK_QUANTIZED = PackQuantized()
CONTAINERS: Mapping[str, Container] = MappingProxyType(
    {
        x.name: x
        for x in (PACK_QUANTIZED, GptqWords("gptq", True), GptqWords("gptq_v2", False), AwqWords())
    }
)


def rounded_up(scales: Matrix, kind: str) -> Matrix:
    """Numbers of the type, 1 for 0; the nearest may be smaller, half a code of 8 bits in bf16, by
    which the largest weights would be cut. Raises ModelError for those beyond it."""
    found = finite_scales(scales)
    if kind == "BF16":
        bits = found.view(np.uint32) + np.uint32(0xFFFF)
        return (bits & np.uint32(0xFFFF0000)).view(np.float32)
    with np.errstate(over="ignore"):
        near = found.astype(np.float16)
    up = np.where(near < found, np.nextafter(near, np.float16(np.inf)), near)
    return finite_scales(up.astype(np.float32))


def stored(scales: Matrix, kind: str) -> bytes:
    """``scales`` are numbers of the type."""
    if kind == "BF16":
        return (np.ascontiguousarray(scales).view(np.uint32) >> 16).astype("<u2").tobytes()
    return scales.astype("<f2" if kind == "F16" else "<f4").tobytes()


def words_of(values: Words, bits: int) -> Words:
    """[n, m] -> [n, m * bits / 32], the first in the lowest bits; zeros fill the last word."""
    per = 32 // bits
    values = np.pad(values, ((0, 0), (0, -values.shape[1] % per)))
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    runs = values.reshape(len(values), -1, per) << shifts
    return np.asarray(np.bitwise_or.reduce(runs, axis=2), "<u4")


def _zero_words(rows: CodedRows, form: GroupForm) -> Words:
    """[n * bits / 32, groups]"""
    return np.ascontiguousarray(words_of(np.ascontiguousarray(rows.zeros.T), form.bits).T)


def _gemm_words(values: Words) -> Words:
    """[n, m] -> [n / 8, m]"""
    runs = values.T.reshape(values.shape[1], -1, 8)[..., GEMM_ORDER]
    words = words_of(np.ascontiguousarray(runs).reshape(values.shape[1], -1), 4)
    return np.ascontiguousarray(words.T)


def _check_outputs(container: str, tensor: str, n: int, multiple: int) -> None:
    if n % multiple:
        raise ConfigError(
            f"{tensor} has {n} outputs, {container} needs a multiple of {multiple}: take "
            "--container compressed-tensors"
        )
