"""Writers of tiny quantized checkpoints, each from what its format's authors say of it: the file,
and the f32 weights that it stands for, made by its definition and not by reading it back."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.gguf_writer import bf16_bits
from tests.kv_codes import from_bf16
from tests.tiny import SPECIAL, TinyModel, tokenizer

Array = NDArray[np.float32]
Ints = NDArray[np.int64]
Raw = tuple[str, tuple[int, ...], bytes]
"""dtype, shape and bytes of a tensor of a safetensors file."""


@dataclass
class Stored:
    """Tensors of a module, and the weight that they are."""

    tensors: dict[str, Raw]
    weight: Array


@dataclass(frozen=True)
class Kind:
    """A format: its config, and how a matrix is stored."""

    config: Mapping[str, object]
    store: Callable[[str, Array], Stored]
    skips: tuple[str, ...] = ("embed_tokens", "lm_head", ".gate.weight")
    """Matrices that it leaves alone."""
    beside: str = ""
    """A file for the config, in place of config.json."""


@dataclass
class Written:
    folder: Path
    weights: dict[str, Array] = field(default_factory=dict)
    """Of every tensor of the model, as f32."""
    n_bytes: int = 0
    """Of the quantized modules."""
    quantized: list[str] = field(default_factory=list)


def write_quantized(model: TinyModel, folder: Path, kind: Kind) -> Written:
    """A Hugging Face folder; what is not quantized is F32."""
    folder.mkdir(parents=True, exist_ok=True)
    found, tensors = Written(folder), dict[str, Raw]()
    for name, values in model.tensors.items():
        if values.ndim != 2 or any(skip in name for skip in kind.skips):
            tensors[name] = raw_floats(values, "F32")
            found.weights[name] = values
            continue
        stored = kind.store(name.removesuffix(".weight"), values)
        tensors |= stored.tensors
        found.weights[name] = stored.weight
        found.quantized.append(name)
        found.n_bytes += sum(len(data) for _, _, data in stored.tensors.values())
    config = dict(model.config)
    if kind.beside:
        (folder / kind.beside).write_text(json.dumps(kind.config))
    else:
        config["quantization_config"] = kind.config
    (folder / "config.json").write_text(json.dumps(config))
    write_raw(folder / "model.safetensors", tensors)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": SPECIAL[0]}))
    return found


def write_raw(path: Path, tensors: Mapping[str, Raw]) -> None:
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def raw_floats(x: Array, dtype: str) -> Raw:
    if dtype == "BF16":
        return dtype, x.shape, bf16_bits(x).astype("<u2").tobytes()
    return dtype, x.shape, x.astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes()


def rounded(x: Array, dtype: str) -> Array:
    if dtype == "BF16":
        return from_bf16(bf16_bits(x))
    return x.astype("<f2").astype(np.float32) if dtype == "F16" else x


def raw_words(values: NDArray[np.uint32]) -> Raw:
    return "I32", values.shape, values.astype("<u4").tobytes()


def stream(values: Ints, bits: int) -> NDArray[np.uint32]:
    """Rows of integers as one number of ``bits`` digits each, the first lowest, cut into words."""
    words = -(-values.shape[1] * bits // 32)
    rows = []
    for row in values:
        number = sum(int(value) << (bits * i) for i, value in enumerate(row))
        rows.append([number >> (32 * i) & 0xFFFFFFFF for i in range(words)])
    return np.array(rows, np.uint32)


@dataclass(frozen=True)
class Integers:
    """Rows rounded to codes in groups; ``dtype`` of the scales."""

    bits: int
    group: int
    is_symmetric: bool
    dtype: str = "F16"

    def of(self, w: Array) -> tuple[Ints, Ints, Array, Array]:
        """(codes [n, k], zeros [n, groups], scales [n, groups], the weight)."""
        n, k = w.shape
        group = k if self.group < 0 else self.group
        top, groups = (1 << self.bits) - 1, -(-k // group)
        low, high = (np.zeros((n, groups), np.float32) for _ in range(2))
        for g in range(groups):
            part = w[:, g * group : (g + 1) * group]
            low[:, g], high[:, g] = part.min(axis=1).clip(max=0), part.max(axis=1).clip(min=0)
        if self.is_symmetric:
            high = np.maximum(high, -low)
            low = -high
        scales = rounded((high - low) / np.float32(top) + np.float32(1e-4), self.dtype)
        zeros = np.rint(-low / scales).clip(0, top).astype(np.int64)
        if self.is_symmetric:
            zeros[:] = 1 << (self.bits - 1)
        of = np.arange(k) // group
        codes = np.rint(w / scales[:, of]).astype(np.int64) + zeros[:, of]
        codes = codes.clip(0, top)
        weight = (codes - zeros[:, of]).astype(np.float32) * scales[:, of]
        return codes, zeros, scales, weight


def gptq(bits: int, group: int, *, sym: bool, version: str = "gptq", **more: object) -> Kind:
    """Version 1 (``gptq``) stores words of zeros less one in each place, with borrows; symmetric
    files of any writer hold 7 or 8."""
    ints = Integers(bits, group, sym)

    def store(module: str, w: Array) -> Stored:
        codes, zeros, scales, weight = ints.of(w)
        words = stream(zeros.T, bits)
        if version == "gptq":
            one = sum(1 << i for i in range(0, 32, bits))
            if bits == 3 and "meta" in more:
                # GPTQModel's: three numbers for words in turns, the first and the last exchanged
                taken = [int(x * 11, 2) % (1 << 32) for x in ("100", "010", "001")]
                turns = np.resize(np.array(taken), words.shape[1])
                words = ((words.astype(np.int64) - turns) % (1 << 32)).astype(np.uint32)
            elif bits == 3:
                words = stream((zeros.T - 1) % 8, 3)
            else:
                words = ((words.astype(np.int64) - one) % (1 << 32)).astype(np.uint32)
        k = w.shape[1]
        of = np.arange(k) // (k if group < 0 else group)
        tensors = {
            f"{module}.qweight": raw_words(np.ascontiguousarray(stream(codes, bits).T)),
            f"{module}.qzeros": raw_words(words),
            f"{module}.scales": raw_floats(np.ascontiguousarray(scales.T), "F16"),
            f"{module}.g_idx": ("I32", (k,), of.astype("<i4").tobytes()),
        }
        return Stored(tensors, weight)

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym}
    return Kind({**config, "desc_act": False, "checkpoint_format": version, **more}, store)


def in_another_order(kind: Kind, sizes: int | None = None) -> Kind:
    """The same with inputs in an order of each number of them (act-order), and of each expert:
    groups of a shuffled matrix, which is stored in the order of the model. ``sizes``: of a first
    group that is wrong."""

    def store(module: str, w: Array) -> Stored:
        expert = next((int(x) for x in module.split(".experts.")[1:] for x in x.split(".")[:1]), 0)
        order = np.random.default_rng(w.shape[1] + 1000 * expert).permutation(w.shape[1])
        stored = kind.store(module, np.ascontiguousarray(w[:, order]))
        back = np.argsort(order)
        dtype, shape, data = stored.tensors[f"{module}.g_idx"]
        groups = np.frombuffer(data, "<i4")[back].copy()
        if sizes is not None:
            groups[:sizes] = 0
        stored.tensors[f"{module}.g_idx"] = dtype, shape, groups.tobytes()
        _, (n_words, n), words = stored.tensors[f"{module}.qweight"]
        codes = (
            np.frombuffer(words, "<u4").reshape(n_words, 1, n) >> np.arange(0, 32, 4)[:, None] & 15
        )
        codes = codes.reshape(-1, n)[back].reshape(n_words, 8, n)
        packed = sum(codes[:, i].astype(np.uint32) << np.uint32(4 * i) for i in range(8))
        stored.tensors[f"{module}.qweight"] = "I32", (n_words, n), packed.astype("<u4").tobytes()
        return replace(stored, weight=stored.weight[:, back])

    return replace(kind, store=store)


def awq(version: str, group: int) -> Kind:
    ints = Integers(4, group, False)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def kernel_words(values: Ints) -> NDArray[np.uint32]:
        """Nibble i of a word is column order[i] of its eight."""
        eights = values.reshape(len(values), -1, 8)
        return sum(eights[..., order[i]] << 4 * i for i in range(8)).astype(np.uint32)

    def store(module: str, w: Array) -> Stored:
        codes, zeros, scales, weight = ints.of(w)
        if version == "gemm":
            tensors = {
                "qweight": raw_words(kernel_words(codes.T)),
                "qzeros": raw_words(kernel_words(zeros.T)),
                "scales": raw_floats(np.ascontiguousarray(scales.T), "F16"),
            }
        else:
            padded = -(-zeros.shape[1] // 8) * 8 - zeros.shape[1]
            tensors = {
                "qweight": raw_words(stream(codes, 4)),
                "qzeros": raw_words(stream(np.pad(zeros, ((0, 0), (0, padded))), 4)),
                "scales": raw_floats(np.pad(scales, ((0, 0), (0, padded))), "F16"),
            }
        return Stored({f"{module}.{end}": raw for end, raw in tensors.items()}, weight)

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
    return Kind({**config, "version": version}, store)


def compressed(weights: Mapping[str, object], form: str, **more: object) -> Mapping[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
        **more,
    }


def pack_quantized(bits: int, group: int, sym: bool, dtype: str, dense: bool = True) -> Kind:
    """Codes along the inputs, zeros along the outputs; 3 bits: dense, or ten a word."""
    ints = Integers(bits, group, sym, dtype)

    def packed(values: Ints) -> NDArray[np.uint32]:
        if dense:
            return stream(values, bits)
        per = 32 // bits
        values = np.pad(values, ((0, 0), (0, -values.shape[1] % per)))
        runs = values.reshape(len(values), -1, per)
        return sum(runs[..., i] << bits * i for i in range(per)).astype(np.uint32)

    def store(module: str, w: Array) -> Stored:
        codes, zeros, scales, weight = ints.of(w)
        tensors = {
            "weight_packed": raw_words(packed(codes)),
            "weight_scale": raw_floats(scales, dtype),
            "weight_shape": ("I64", (2,), np.array(w.shape, "<i8").tobytes()),
        }
        if not sym:
            words = np.ascontiguousarray(packed(zeros.T).T)
            tensors["weight_zero_point"] = raw_words(words)
        return Stored({f"{module}.{end}": raw for end, raw in tensors.items()}, weight)

    strategy = {"strategy": "group", "group_size": group} if group > 0 else {"strategy": "channel"}
    args = {"num_bits": bits, "type": "int", "symmetric": sym, **strategy}
    return Kind(compressed(args, "pack-quantized"), store)


def int_quantized(dtype: str = "BF16", whole: bool = False) -> Kind:
    """W8A8: int8, a scale for each output, or one (``whole``)."""

    def store(module: str, w: Array) -> Stored:
        peak = np.abs(w).max(axis=None if whole else 1, keepdims=True)
        scales = rounded((peak / np.float32(127)).reshape(-1, 1).astype(np.float32), dtype)
        codes = np.rint(w / scales).clip(-128, 127).astype(np.int8)
        scale = scales.reshape(1) if whole else scales
        tensors = {
            f"{module}.weight": ("I8", w.shape, codes.tobytes()),
            f"{module}.weight_scale": raw_floats(scale, dtype),
        }
        return Stored(tensors, codes.astype(np.float32) * scales)

    args = {"num_bits": 8, "type": "int", "symmetric": True}
    args["strategy"] = "tensor" if whole else "channel"
    return Kind(compressed(args, "int-quantized"), store)
