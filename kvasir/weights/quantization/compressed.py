"""compressed-tensors, as llm-compressor writes it: groups of modules with a scheme each."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.fields import UNQUANTIZED, QuantFields
from kvasir.weights.quantization.floats import F8, f8_tensor, nvfp4_tensor
from kvasir.weights.quantization.fp8 import block_of
from kvasir.weights.quantization.gptq import input_groups
from kvasir.weights.quantization.integers import (
    CodeWords,
    IntegerModule,
    Numbers,
    integer_format,
    n_words,
)
from kvasir.weights.quantization.mxfp4 import mxfp4_tensor
from kvasir.weights.quantization.parts import FLOATS, INTS, OF_ACTIVATIONS, Given, Parts
from kvasir.weights.quantization.patterns import MAX_PATTERNS, Pattern, pattern_of

_FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision", "dense"),
)
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")


class Weights(msgspec.Struct, frozen=True):
    """Of a scheme."""

    bits: int
    kind: str
    is_symmetric: bool
    strategy: str
    group: int
    """0: the whole row."""
    block: tuple[int, int] | None


class ModuleNames(msgspec.Struct, frozen=True):
    """Modules, by their names, by patterns of them, or by their class."""

    plain: frozenset[str] = frozenset()
    patterns: tuple[Pattern, ...] = ()

    def names(self, module: str) -> bool:
        return module in self.plain or any(x.matches(module) for x in self.patterns)

    @property
    def has_classes(self) -> bool:
        """Linears are meant: names of classes have no dot, those of modules but the head do."""
        return any("." not in name and name[:1].isupper() for name in self.plain)


class Compressed(msgspec.Struct, frozen=True):
    schemes: tuple[tuple[ModuleNames, Weights], ...]
    ignored: ModuleNames
    ends: tuple[str, ...] = (
        *("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_shape"),
        *("weight_g_idx", "weight_global_scale"),
    )
    unread: tuple[str, ...] = OF_ACTIVATIONS
    joint: str = "."

    @property
    def text(self) -> str:
        schemes = " and ".join(_text(x) for _, x in self.schemes)
        return f"compressed-tensors, {schemes or 'of the KV cache alone'}"

    def weight(self, module: str, parts: Parts) -> TensorInfo | None:
        packed = parts.get("weight_packed", parts.get("weight"))
        if packed is None or not ("weight_packed" in parts or packed.format in ("I8", *F8)):
            return None
        given = Given(module, parts)
        scheme = self._scheme(given)
        if "weight_packed" not in parts:
            if packed.format == "I8":
                return _bytes(given, packed, scheme)
            return f8_tensor(given, "weight_scale", scheme.block)
        if packed.format in INTS:
            return _words(given, scheme)
        if scheme.group == 32:
            return mxfp4_tensor(given, "weight_packed", "weight_scale")
        return nvfp4_tensor(given, "weight_packed", "weight_global_scale", "D")

    def _scheme(self, given: Given) -> Weights:
        """By name or pattern first, then by class."""
        if self.ignored.names(given.name):
            raise given.error("is quantized, quantization_config ignores it")
        for names, scheme in self.schemes:
            if names.names(given.name):
                return scheme
        for names, scheme in self.schemes:
            if names.has_classes:
                return scheme
        raise given.error("is quantized, no group of quantization_config targets it")


def _text(x: Weights) -> str:
    return f"{x.kind}{x.bits} by {x.strategy}" + (f" of {x.group}" if x.group else "")


def _words(given: Given, x: Weights) -> TensorInfo:
    """Codes in words along the inputs, more by half of them; zeros in words along the outputs."""
    words = given.part("weight_packed", INTS, 2)
    n, k = _shape(given)
    is_dense = words.shape[1] == n_words(k, x.bits, True)
    if words.shape != (n, n_words(k, x.bits, is_dense)):
        raise given.error(
            f"has weight_packed of shape {list(words.shape)}, weight_shape says {n} x {k} of "
            f"{x.bits} bits"
        )
    group = x.group or k
    groups = -(-k // group)
    scales = given.shaped("weight_scale", FLOATS, (n, groups))
    zeros: CodeWords | int = 1 << (x.bits - 1)
    if not x.is_symmetric:
        shape = (n_words(n, x.bits, is_dense), groups)
        stored = given.shaped("weight_zero_point", INTS, shape)
        zeros = CodeWords(stored, x.bits, 0, "outputs", is_dense=is_dense)
    form = integer_format(given, x.bits, group, k, scales.format, x.is_symmetric)
    found = IntegerModule(
        *(form, n, k, group),
        CodeWords(words, x.bits, 1, "inputs", is_dense=is_dense),
        Numbers(scales, by_input=False),
        zeros,
        (given.parts["weight_shape"],),
        input_groups(given, "weight_g_idx", k, group),
    )
    return given.made(form, (n, k), found)


def _shape(given: Given) -> tuple[int, int]:
    """The numbers of ``weight_shape``."""
    info = given.part("weight_shape", ("I64", "I32"), 1)
    if info.shape != (2,):
        raise given.error(f"has weight_shape of {list(info.shape)} numbers, expected 2")
    n, k = struct.unpack("<2q" if info.format == "I64" else "<2i", info.data)
    if not (1 <= n < 1 << 31 and 1 <= k < 1 << 31):
        raise given.error(f"has the impossible weight_shape {n} x {k}")
    return n, k


def _bytes(given: Given, codes: TensorInfo, x: Weights) -> TensorInfo:
    """Codes of eight bits, as int8."""
    if not x.is_symmetric or "weight_zero_point" in given.parts:
        raise given.error(f"has int8 weights with zeros, expected symmetric ones: {UNQUANTIZED}")
    if len(codes.shape) != 2:
        raise given.error(f"has weight of shape {list(codes.shape)}, expected 2 axes")
    n, k = codes.shape
    group = x.group or k
    scales = given.part("weight_scale", FLOATS)
    if math.prod(scales.shape) > 1 and scales.shape != (n, -(-k // group)):
        raise given.error(
            f"has weight_scale of shape {list(scales.shape)}, expected {[n, -(-k // group)]}"
        )
    form = integer_format(given, 8, group, k, scales.format, is_centred=True)
    numbers = Numbers(scales, by_input=False)
    return given.made(form, (n, k), IntegerModule(form, n, k, group, codes, numbers, 128))


def read_compressed(fields: QuantFields) -> Compressed:
    """Raises ModelError."""
    fields.one_of(_FORMATS, "format", default="dense")
    fields.refuse("transform_config", "transforms while a model runs are not computed")
    sparsity = fields.table("sparsity_config")
    if sparsity is not None:
        sparsity.refuse("format", "sparse weights are not read", "dense")
    groups = fields.table("config_groups")
    if (groups is None or not groups.values) and fields.table("kv_cache_scheme") is not None:
        return Compressed((), ModuleNames())
    if groups is None or not groups.values:
        raise fields.error("config_groups", None, f"at least one group: {UNQUANTIZED}")
    if len(groups.values) > MAX_PATTERNS:
        raise fields.error("config_groups", f"{len(groups.values)} groups", "at most 64")
    found = []
    for name in groups.values:
        group = groups.table(name) or QuantFields({}, groups.where)
        group.one_of(_FORMATS, "format", default="dense")
        weights = group.table("weights")
        if weights is not None:
            found.append((_names(group, "targets"), _weights(weights)))
    return Compressed(tuple(found), _names(fields, "ignore"))


def _names(fields: QuantFields, name: str) -> ModuleNames:
    """A list of names, of patterns behind "re:", and of classes."""
    listed = fields.names(name)
    patterns = [x.removeprefix("re:") for x in listed if x.startswith("re:")]
    if len(patterns) > MAX_PATTERNS:
        raise fields.error(name, f"{len(patterns)} patterns", f"at most {MAX_PATTERNS}")
    return ModuleNames(
        frozenset(x for x in listed if not x.startswith("re:")),
        tuple(pattern_of(x, f"{fields.where}, {name}") for x in patterns),
    )


_BITS: Mapping[str, tuple[int, ...]] = MappingProxyType({"int": (2, 3, 4, 8), "float": (4, 8)})


def _weights(fields: QuantFields) -> Weights:
    kind = fields.one_of(("int", "float"), "type", default="int")
    bits = fields.one_of(_BITS[kind], "num_bits")
    strategy = fields.one_of(_STRATEGIES, "strategy", default=_strategy(fields))
    group = _group(fields, strategy)
    structure = fields.raw("block_structure")
    if isinstance(structure, str) and structure.count("x") == 1 and len(structure) < 32:
        structure = [int(x) if x.isdecimal() else x for x in structure.split("x")]
    block = block_of(fields, "block_structure", structure) if strategy == "block" else None
    return Weights(bits, kind, fields.flag("symmetric", True), strategy, group, block)


def _strategy(fields: QuantFields) -> str:
    """Where it is not said."""
    size = fields.raw("group_size")
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _group(fields: QuantFields, strategy: str) -> int:
    if strategy == "tensor_group":  # of NVFP4
        return fields.one_of((16,), "group_size", default=16)
    return fields.group("group_size") if strategy == "group" else 0
