"""bitsandbytes: int8 with a largest number for each output (LLM.int8(), arXiv:2208.07339), and NF4
and FP4 with one for each 64 of the flattened matrix (QLoRA, arXiv:2305.14314)."""

from __future__ import annotations

import math

import msgspec

from kvasir.formats.jsonfile import parse_object
from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.fields import QuantFields
from kvasir.weights.quantization.integers import IntegerModule, Numbers
from kvasir.weights.quantization.parts import Given, Parts, whole_rows

BLOCK = 64
_MAX_STATE = 4096
_STATES = {
    "nf4": "weight.quant_state.bitsandbytes__nf4",
    "fp4": "weight.quant_state.bitsandbytes__fp4",
}


class T4Module(msgspec.Struct, frozen=True):
    """value = absmax * level of the code; ``codes`` have the even elements high."""

    format: str
    n: int
    k: int
    codes: TensorInfo
    absmax: TensorInfo
    """f32; or u8, indices of ``nested_map``, times ``nested_absmax`` of 256, and ``offset``."""
    levels: TensorInfo
    nested: tuple[TensorInfo, TensorInfo] | None
    """(nested_map, nested_absmax)"""
    nested_block: int
    offset: float

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.codes, self.absmax, self.levels, *(self.nested or ()))

    def rows(self) -> memoryview:
        # Imported now: only who computes needs NumPy.
        from kvasir.weights.quantization.t4_rows import t4_rows

        return t4_rows(self)


class Bnb8(msgspec.Struct, frozen=True):
    text: str = "bitsandbytes int8"
    ends: tuple[str, ...] = ("weight", "SCB", "weight_format")
    unread: tuple[str, ...] = ()
    joint: str = "."

    def weight(self, module: str, parts: Parts) -> TensorInfo | None:
        if "SCB" not in parts:
            return None
        given = Given(module, parts)
        codes = given.part("weight", ("I8",), 2)
        n, k = codes.shape
        whole_rows(given, k)
        largest = given.shaped("SCB", ("F32",), (n,))
        order = parts.get("weight_format")
        if order is not None and any(order.data):
            raise given.error("has weight_format of a kernel's own order, expected row")
        scales = Numbers(largest, by_input=False, factor=1 / 127)
        others = (order,) if order is not None else ()
        found = IntegerModule("Q8C", n, k, k, codes, scales, 128, others)
        return given.made("Q8C", (n, k), found)


class Bnb4(msgspec.Struct, frozen=True):
    text: str = "bitsandbytes 4 bits"
    ends: tuple[str, ...] = (
        *("weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax"),
        *("weight.nested_quant_map", *_STATES.values()),
    )
    unread: tuple[str, ...] = ()
    joint: str = "."

    def weight(self, module: str, parts: Parts) -> TensorInfo | None:
        kind = next((kind for kind, end in _STATES.items() if end in parts), None)
        if kind is None:
            return None
        given = Given(module, parts)
        state = _state(given, _STATES[kind])
        n, k = state.shape
        codes = given.part("weight", ("U8",))
        if codes.data.nbytes * 2 != n * k:
            raise given.error(f"has {codes.data.nbytes} bytes of codes for {n} x {k}")
        levels = given.shaped("weight.quant_map", ("F32",), (16,))
        blocks = n * k // BLOCK
        nested = None
        if "weight.nested_absmax" in parts:
            n_nested = -(-blocks // state.nested_block)
            nested = (
                given.shaped("weight.nested_quant_map", ("F32",), (256,)),
                given.shaped("weight.nested_absmax", ("F32",), (n_nested,)),
            )
        absmax = given.shaped("weight.absmax", ("U8",) if nested else ("F32",), (blocks,))
        form = kind.upper()
        found = T4Module(
            *(form, n, k, codes, absmax, levels, nested, state.nested_block, state.offset)
        )
        return given.made(form, (n, k), found)


class _QuantState(msgspec.Struct, frozen=True):
    """What ``quant_state`` says."""

    shape: tuple[int, int]
    nested_block: int
    offset: float


def _state(given: Given, end: str) -> _QuantState:
    """Of the JSON in a tensor. Raises ModelError."""
    info = given.part(end, ("U8",), 1)
    if info.data.nbytes > _MAX_STATE:
        raise given.error(f"has {end} of {info.data.nbytes} bytes, at most {_MAX_STATE} are read")
    where = f"module '{given.name}': {end}"
    fields = QuantFields(parse_object(info.data.tobytes(), where), where)
    fields.one_of((BLOCK,), "blocksize")
    shape = fields.raw("shape")
    fits = isinstance(shape, list) and len(shape) == 2 and all(type(x) is int for x in shape)
    if not fits or not isinstance(shape, list) or not all(1 <= x < 1 << 31 for x in shape):
        raise fields.error("shape", shape, "two sizes")
    n, k = shape
    if k % BLOCK:
        raise fields.error("shape", shape, f"rows of a multiple of {BLOCK}")
    nested = fields.raw("nested_blocksize")
    if nested is not None and (type(nested) is not int or not 1 <= nested <= 1 << 20):
        raise fields.error("nested_blocksize", nested, "a number of blocks")
    offset = fields.raw("nested_offset")
    offset = 0.0 if offset is None else offset
    if type(offset) not in (int, float) or not isinstance(offset, int | float):
        raise fields.error("nested_offset", offset, "a number")
    if not math.isfinite(offset):
        raise fields.error("nested_offset", offset, "a finite number")
    return _QuantState((n, k), nested if isinstance(nested, int) else 256, float(offset))


def read_bitsandbytes(fields: QuantFields) -> Bnb8 | Bnb4:
    """Raises ModelError."""
    if fields.flag("load_in_8bit", False):
        return Bnb8()
    if not fields.flag("load_in_4bit", False):
        raise fields.error("load_in_4bit", False, "true, or load_in_8bit")
    fields.one_of(("nf4", "fp4"), "bnb_4bit_quant_type", default="fp4")
    fields.one_of(("uint8",), "bnb_4bit_quant_storage", default="uint8")
    return Bnb4(text=f"bitsandbytes {fields.raw('bnb_4bit_quant_type') or 'fp4'}")
