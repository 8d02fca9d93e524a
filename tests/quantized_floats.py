"""Writers of tiny checkpoints of small floats: FP8, NVFP4 and what bitsandbytes has."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvasir.formats.modules import FP4B_VALUES, NF4_VALUES
from tests.kv_codes import fp8_table
from tests.quantized_writer import Array, Kind, Raw, Stored, compressed, raw_floats, rounded

E4M3 = fp8_table(3, 7, 1)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def nearest(table: Array, values: Array) -> NDArray[np.uint8]:
    """Codes of the table's entries nearest to the values."""
    entries = np.where(np.isfinite(table), table, np.float32(1e30))
    flat = values.reshape(-1, 1)
    found = [np.abs(part - entries).argmin(axis=1) for part in np.array_split(flat, 64)]
    return np.concatenate(found).astype(np.uint8).reshape(values.shape)


def f8_codes(values: Array) -> NDArray[np.uint8]:
    return nearest(E4M3, values)


def fp8_blocks(rows: int, columns: int, scale_dtype: str = "F32") -> Kind:
    """A scale for each block, which multiplies; blocks at the ends may be ragged."""

    def store(module: str, w: Array) -> Stored:
        n, k = w.shape
        scales = np.zeros((-(-n // rows), -(-k // columns)), np.float32)
        for i, j in np.ndindex(scales.shape):
            part = w[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scales[i, j] = np.abs(part).max() / np.float32(448) + np.float32(1e-6)
        if scale_dtype == "F8_E8M0":
            scales = np.exp2(np.ceil(np.log2(scales))).astype(np.float32)
        else:
            scales = rounded(scales, scale_dtype)
        spread = scales[np.arange(n) // rows][:, np.arange(k) // columns]
        codes = f8_codes(w / spread)
        if scale_dtype == "F8_E8M0":
            exponents = (np.log2(scales) + 127).astype(np.uint8)
            scale: Raw = scale_dtype, scales.shape, exponents.tobytes()
        else:
            scale = raw_floats(scales, scale_dtype)
        tensors = {
            f"{module}.weight": ("F8_E4M3", w.shape, codes.tobytes()),
            f"{module}.weight_scale_inv": scale,
        }
        return Stored(tensors, E4M3[codes] * spread)

    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    return Kind({**config, "weight_block_size": [rows, columns]}, store)


def fp8(config: Mapping[str, object], by_row: bool, dtype: str, more: tuple[str, ...] = ()) -> Kind:
    """One scale, or one for each output; ``more``: scales of activations beside."""

    def store(module: str, w: Array) -> Stored:
        peak = np.abs(w).max(axis=1 if by_row else None, keepdims=True).reshape(-1, 1)
        scales = rounded((peak / np.float32(448)).astype(np.float32), dtype)
        codes = f8_codes(w / scales)
        shape = scales if by_row else scales.reshape(())
        tensors = {
            f"{module}.weight": ("F8_E4M3", w.shape, codes.tobytes()),
            f"{module}.weight_scale": raw_floats(shape, dtype),
        }
        one = np.ones((), np.float32)
        tensors |= {f"{module}.{end}": raw_floats(one, "F32") for end in more}
        return Stored(tensors, E4M3[codes] * scales)

    return Kind(config, store)


def nvfp4(divides: bool) -> Kind:
    """compressed-tensors divides by the global scale, ModelOpt multiplies by the second scale."""

    def store(module: str, w: Array) -> Stored:
        n, k = w.shape
        runs = w.reshape(n, k // 16, 16)
        peak = np.abs(runs).max(axis=2)
        second = np.float32(peak.max() / np.float32(6 * 448) + np.float32(1e-9))
        factor = np.float32(1) / second if divides else second
        codes = f8_codes(peak / np.float32(6) / second)
        steps = E4M3[codes] / factor if divides else E4M3[codes] * factor
        safe = np.where(steps > 0, steps, np.float32(1))
        fours = nearest(E2M1, runs / safe[..., None])
        packed = fours.reshape(n, -1, 2)
        data = (packed[..., 0] | packed[..., 1] << 4).astype(np.uint8)
        names = (
            ("weight_packed", "weight_global_scale") if divides else ("weight", "weight_scale_2")
        )
        tensors = {
            f"{module}.{names[0]}": ("U8", data.shape, data.tobytes()),
            f"{module}.weight_scale": ("F8_E4M3", codes.shape, codes.tobytes()),
            f"{module}.{names[1]}": raw_floats(np.full((1,) if divides else (), factor), "F32"),
        }
        # doubled codes times half a step: the same product, as no rounding is near its border
        return Stored(tensors, (E2M1[fours] * steps[..., None]).reshape(n, k))

    if divides:
        args = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        return Kind(compressed(args, "nvfp4-pack-quantized"), store)
    return Kind({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, store)


def bnb_int8() -> Kind:
    def store(module: str, w: Array) -> Stored:
        peak = np.abs(w).max(axis=1).astype(np.float32)
        codes = np.rint(w * np.float32(127) / peak[:, None]).astype(np.int8)
        tensors = {
            f"{module}.weight": ("I8", w.shape, codes.tobytes()),
            f"{module}.SCB": raw_floats(peak, "F32"),
            f"{module}.weight_format": ("U8", (), b"\0"),
        }
        scale = peak * np.float32(1 / 127)
        return Stored(tensors, codes.astype(np.float32) * scale[:, None])

    return Kind({"quant_method": "bitsandbytes", "load_in_8bit": True}, store)


def bnb_4bit(kind: str, nested: bool) -> Kind:
    """Blocks of 64 of the flattened matrix, the high nibble first; ``nested``: the largest numbers
    as codes of a table, with their own, and their mean beside."""
    levels = {"nf4": NF4_VALUES, "fp4": FP4B_VALUES}[kind]
    table = np.linspace(-1, 1, 256, dtype=np.float32)

    def store(module: str, w: Array) -> Stored:
        blocks = w.reshape(-1, 64)
        absmax = np.abs(blocks).max(axis=1).astype(np.float32)
        state: dict[str, object] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16"}
        state["shape"] = list(w.shape)
        extra: dict[str, Raw] = {}
        stored = raw_floats(absmax, "F32")
        if nested:
            offset = float(np.float32(absmax.mean()))
            shifted = absmax - np.float32(offset)
            many = [shifted[i : i + 256] for i in range(0, len(shifted), 256)]
            peaks = np.array([np.abs(x).max() + np.float32(1e-6) for x in many], np.float32)
            of = np.arange(len(shifted)) // 256
            codes = nearest(table, shifted / peaks[of])
            absmax = table[codes] * peaks[of] + np.float32(offset)
            stored = ("U8", codes.shape, codes.tobytes())
            extra["nested_absmax"] = raw_floats(peaks, "F32")
            extra["nested_quant_map"] = raw_floats(table, "F32")
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        fours = nearest(levels, blocks / absmax[:, None]).reshape(-1, 2)
        data = (fours[:, 0] << 4 | fours[:, 1]).astype(np.uint8)
        text = json.dumps(state).encode()
        tensors = {
            "absmax": stored,
            "quant_map": raw_floats(levels, "F32"),
            f"quant_state.bitsandbytes__{kind}": ("U8", (len(text),), text),
            **extra,
        }
        found = {f"{module}.weight.{end}": raw for end, raw in tensors.items()}
        found[f"{module}.weight"] = ("U8", (len(data), 1), data.tobytes())
        return Stored(found, (levels[fours.reshape(-1, 64)] * absmax[:, None]).reshape(w.shape))

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    return Kind({**config, "bnb_4bit_quant_storage": "uint8"}, store)
