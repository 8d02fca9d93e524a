"""Writers of tiny GGUF and safetensors files for tests, with reference quantizers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_SCALARS = {
    "uint8": (0, "B"), "int8": (1, "b"), "uint16": (2, "H"), "int16": (3, "h"),
    "uint32": (4, "I"), "int32": (5, "i"), "float32": (6, "f"), "bool": (7, "?"),
    "uint64": (10, "Q"), "int64": (11, "q"), "float64": (12, "d"),
}  # fmt: skip


def bf16_bits(x: Array) -> NDArray[np.uint16]:
    """f32 -> bfloat16 bit patterns, rounded to nearest even; finite input."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _pack_nibbles(q: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return q[:, :16] | (q[:, 16:] << np.uint8(4))


def _inverse(d: Array) -> Array:
    return np.divide(1.0, d, out=np.zeros_like(d), where=d != 0)


def quantize_q8_0(x: Array) -> bytes:
    rows = x.reshape(-1, 32)
    d = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    q = np.rint(rows * _inverse(d)).astype(np.int8)
    return np.concatenate([d.astype("<f2").view(np.uint8), q.view(np.uint8)], axis=1).tobytes()


def quantize_q4_0(x: Array) -> bytes:
    rows = x.reshape(-1, 32)
    peak = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1)
    d = peak / np.float32(-8)
    q = np.clip(np.floor(rows * _inverse(d) + np.float32(8.5)), 0, 15).astype(np.uint8)
    return np.concatenate([d.astype("<f2").view(np.uint8), _pack_nibbles(q)], axis=1).tobytes()


def quantize_q4_1(x: Array) -> bytes:
    rows = x.reshape(-1, 32)
    low = rows.min(axis=1, keepdims=True)
    d = (rows.max(axis=1, keepdims=True) - low) / np.float32(15)
    q = np.clip(np.floor((rows - low) * _inverse(d) + np.float32(0.5)), 0, 15).astype(np.uint8)
    head = np.concatenate([d, low], axis=1).astype("<f2").view(np.uint8)
    return np.concatenate([head, _pack_nibbles(q)], axis=1).tobytes()


ENCODERS: dict[str, tuple[int, Callable[[Array], bytes]]] = {
    "F32": (0, lambda x: x.astype("<f4").tobytes()),
    "F16": (1, lambda x: x.astype("<f2").tobytes()),
    "Q4_0": (2, quantize_q4_0),
    "Q4_1": (3, quantize_q4_1),
    "Q8_0": (8, quantize_q8_0),
    "BF16": (30, lambda x: bf16_bits(x).astype("<u2").tobytes()),
}


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _scalar(value: object) -> tuple[int, bytes]:
    """Type id and bytes. An int gets the first type that holds it; a NumPy scalar keeps its own."""
    if isinstance(value, str):
        return 8, string(value)
    if isinstance(value, np.generic):
        kind = value.dtype.name
    elif isinstance(value, bool):
        kind = "bool"
    elif isinstance(value, int):
        wide = "uint64" if value >= 0 else "int64"
        kind = "uint32" if 0 <= value < 1 << 32 else "int32" if -(1 << 31) <= value < 0 else wide
    elif isinstance(value, float):
        kind = "float32"
    else:
        raise TypeError(f"cannot store {type(value).__name__} as GGUF metadata")
    type_id, code = _SCALARS[kind]
    return type_id, struct.pack("<" + code, value)


def value(item: object) -> bytes:
    """Type id and bytes of one metadata value; lists, tuples and NumPy arrays become arrays.

    Bytes are taken as they are: an earlier result.
    """
    if isinstance(item, bytes):
        return item
    if not isinstance(item, list | tuple | np.ndarray):
        type_id, raw = _scalar(item)
        return struct.pack("<I", type_id) + raw
    parts = [_scalar(element) for element in item]
    kinds = {type_id for type_id, _ in parts} or {8}
    if len(kinds) > 1:
        parts = [_scalar(np.int64(element)) for element in item]
        kinds = {11}
    return struct.pack("<IIQ", 9, kinds.pop(), len(parts)) + b"".join(raw for _, raw in parts)


def gguf_bytes(
    metadata: Mapping[str, object],
    tensors: Mapping[str, tuple[str, Array]],
    alignment: int = 32,
    version: int = 3,
) -> bytes:
    """A GGUF file; ``tensors`` maps a name to (format name, values of shape outermost first)."""
    infos, data = b"", b""
    for name, (format_name, array) in tensors.items():
        type_id, encode = ENCODERS[format_name]
        x = np.ascontiguousarray(array, np.float32)
        infos += string(name) + struct.pack(
            f"<I{x.ndim}QIQ", x.ndim, *x.shape[::-1], type_id, len(data)
        )
        raw = encode(x)
        data += raw + bytes(-len(raw) % alignment)
    if alignment != 32:
        metadata = {**metadata, "general.alignment": alignment}
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items()) + infos
    return head + bytes(-len(head) % alignment) + data


def write_gguf(
    path: Path, metadata: Mapping[str, object], tensors: Mapping[str, tuple[str, Array]]
) -> None:
    """Write a GGUF file; ``tensors``: name to (format name, f32 values, outermost axis first)."""
    Path(path).write_bytes(gguf_bytes(metadata, tensors))


def safetensors_bytes(
    tensors: Mapping[str, Array], dtype: str = "F32", metadata: Mapping[str, str] | None = None
) -> bytes:
    """A safetensors file with every tensor in ``dtype``: F32, F16 or BF16."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, array in tensors.items():
        raw = ENCODERS[dtype][1](np.ascontiguousarray(array, np.float32))
        shape = list(np.shape(array))
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_safetensors(path: Path, tensors: Mapping[str, Array], dtype: str = "F32") -> None:
    """Write one safetensors file with every tensor in ``dtype``: F32, F16 or BF16."""
    Path(path).write_bytes(safetensors_bytes(tensors, dtype))
