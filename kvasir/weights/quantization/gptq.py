"""GPTQ: https://arxiv.org/abs/2210.17323, as AutoGPTQ, GPTQModel and AutoRound write it.

A module has ``qweight`` (words along the inputs), ``qzeros`` (words along the outputs), ``scales``
and, where inputs were taken in another order, ``g_idx``: the group of each input.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import msgspec

from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.fields import QuantFields
from kvasir.weights.quantization.integers import (
    CodeWords,
    IntegerModule,
    Numbers,
    integer_format,
    n_words,
)
from kvasir.weights.quantization.parts import FLOATS, INTS, Given, Parts
from kvasir.weights.quantization.patterns import MAX_PATTERNS, Pattern, pattern_of

BITS = (2, 3, 4, 8)
OF_GPTQMODEL = 0x24924924, 0x92492492, 0x49249249
"""What GPTQModel takes from words of zeros of 3 bits, in turns, when it writes the first version:
not a one in each place, but what it adds again when it reads."""
_REFUSED = (
    ("is_marlin_format", "Marlin's order of weights is its kernel's own"),
    ("hadamard", "rotations are not undone"),
    ("rotation", "rotations are not undone"),
    ("adapter", "adapters beside weights are not added"),
    ("lora", "adapters beside weights are not added"),
)


class Scheme(msgspec.Struct, frozen=True):
    """Of a module."""

    bits: int
    group: int
    """0: the whole row."""
    is_symmetric: bool
    less_one: bool
    """Zeros are stored less one (the first version)."""


class Rule(msgspec.Struct, frozen=True):
    """Of modules whose names a pattern matches; None: they are not quantized."""

    pattern: Pattern
    scheme: Scheme | None


class Gptq(msgspec.Struct, frozen=True):
    """The scheme of every module, but for the first rule that fits."""

    scheme: Scheme
    rules: tuple[Rule, ...] = ()
    named: Mapping[str, Scheme] = MappingProxyType({})
    """Of single modules."""
    by_gptqmodel: bool = False
    name: str = "GPTQ"
    ends: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")
    unread: tuple[str, ...] = ()
    joint: str = "."

    @property
    def text(self) -> str:
        return scheme_text(self.name, self.scheme.bits, self.scheme.group)

    def weight(self, module: str, parts: Parts) -> TensorInfo | None:
        given = Given(module, parts)
        scheme = self._scheme(module)
        if scheme is None:
            raise given.error("is quantized, quantization_config says that it is not")
        words = given.part("qweight", INTS, 2)
        n = words.shape[1]
        if words.shape[0] * 32 % scheme.bits:
            raise given.error(f"has {words.shape[0]} words a column, no whole {scheme.bits} bits")
        k = words.shape[0] * 32 // scheme.bits
        group = scheme.group or k
        groups = -(-k // group)
        scales = given.shaped("scales", FLOATS, (groups, n))
        shape = (groups, n_words(n, scheme.bits, True))
        zeros = given.shaped("qzeros", INTS, shape) if "qzeros" in parts else None
        if zeros is None and not scheme.is_symmetric:
            raise given.error("lacks qzeros: download the complete model")
        groups_of = input_groups(given, "g_idx", k, group)
        centre = 1 << (scheme.bits - 1)
        is_centred = scheme.is_symmetric or zeros is None
        form = integer_format(given, scheme.bits, group, k, scales.format, is_centred)
        is_own = self.by_gptqmodel and scheme.less_one and scheme.bits == 3
        found = IntegerModule(
            *(form, n, k, group),
            CodeWords(words, scheme.bits, 0, "inputs"),
            Numbers(scales, by_input=True),
            centre
            if is_centred or zeros is None
            else CodeWords(
                *(zeros, scheme.bits, 1, "outputs"),
                less_one=scheme.less_one,
                more=OF_GPTQMODEL if is_own else (),
            ),
            (zeros,) if is_centred and zeros else (),
            groups_of,
        )
        return given.made(form, (n, k), found)

    def _scheme(self, module: str) -> Scheme | None:
        if module in self.named:
            return self.named[module]
        fits = (rule.scheme for rule in self.rules if rule.pattern.matches(module))
        return next(fits, self.scheme)


def scheme_text(name: str, bits: int, group: int) -> str:
    return f"{name}, {bits} bits, {f'groups of {group}' if group else 'one scale a row'}"


def read_gptq(fields: QuantFields) -> Gptq:
    """Raises ModelError."""
    for name, why in _REFUSED:
        fields.refuse(name, why)
    fields.one_of(("int32",), "pack_dtype", default="int32")
    version = fields.one_of(("gptq", "gptq_v2"), "checkpoint_format", "format", default="gptq")
    scheme = scheme_of(fields, version == "gptq")
    meta = fields.raw("meta")
    writer = meta.get("quantizer") if isinstance(meta, dict) else None
    return Gptq(scheme, _rules(fields, scheme), by_gptqmodel="gptqmodel" in str(writer).lower())


def scheme_of(fields: QuantFields, less_one: bool, base: Scheme | None = None) -> Scheme:
    """Of an object that may lack what ``base`` has."""
    return Scheme(
        fields.one_of(BITS, "bits", default=base.bits if base else None),
        fields.group("group_size", default=base.group or -1 if base else 128),
        fields.flag("sym", base.is_symmetric if base else False),
        less_one,
    )


def _rules(fields: QuantFields, scheme: Scheme) -> tuple[Rule, ...]:
    """GPTQModel's ``dynamic``: patterns of names, -: before those that are not quantized."""
    dynamic = fields.table("dynamic")
    if dynamic is None:
        return ()
    if len(dynamic.values) > MAX_PATTERNS:
        raise fields.error(
            "dynamic", f"{len(dynamic.values)} patterns", f"at most {MAX_PATTERNS} of them"
        )
    rules = []
    for text in dynamic.values:
        pattern = pattern_of(text.removeprefix("-:").removeprefix("+:"), dynamic.where)
        own = dynamic.table(text) or QuantFields({}, dynamic.where)
        is_left = text.startswith("-:")
        rules.append(Rule(pattern, None if is_left else scheme_of(own, scheme.less_one, scheme)))
    return tuple(rules)


def input_groups(given: Given, end: str, k: int, group: int) -> TensorInfo | None:
    """The tensor with the group of each input, where these are not in their order. Raises
    ModelError."""
    if end not in given.parts:
        return None
    found = given.shaped(end, INTS, (k,))
    return None if found.data.tobytes() == _ascending(k, group) else found


@cache
def _ascending(k: int, group: int) -> bytes:
    """The group of each input, little-endian i32."""
    return array("i", (i // group for i in range(k))).tobytes()
