"""What a model on a hub would be here, of its header: whether it starts, for how many tokens it has
room, and about how fast it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from kvasir import _native
from kvasir.checkpoints.loaded import LoadedModel, load_model, model_facts
from kvasir.config.advice import room_of
from kvasir.config.options import EngineOptions
from kvasir.config.resolve import resolve
from kvasir.config.resolved import EngineConfig
from kvasir.core.errors import ConfigError, ModelError
from kvasir.exec.cpu.backend import CPU
from kvasir.ir.cost import weights_read
from kvasir.ir.ops import Sizes
from kvasir.library.quants import Fit, Fits, Quant

DECODE_SHARE = 0.85
"""Of the read bandwidth, that decode reaches (bench/results)."""
UNQUANTIZED = {"F32": "float32", "F16": "float16", "FP16": "float16", "BF16": "bfloat16"}
"""Types of weights, which decide those of keys and values, by tag."""
READ_BYTES = (8 << 20, 256 << 20)
"""Least and most that is read to measure it."""


def fits_here(path: Path, n_header: int, read: Quant, found: Sequence[Quant]) -> Fits:
    """By tag. ``path``: the file of ``read`` with its header, of ``n_header`` bytes, alone; the
    others of ``found`` have more or fewer bytes of weights, of the type that their tag says."""
    try:
        loaded = load_model(str(path))
        facts = model_facts(loaded)
    except ModelError as error:
        why = error.message.replace(str(path), read.file.name)
        return {quant.tag: Fit(refusal=why) for quant in found}
    hardware, fits = CPU.probe(), {}
    rate: float | None = None
    for quant in found:
        share = max(1, quant.n_bytes - n_header) / max(1, read.file.n_bytes - n_header)
        dtype = UNQUANTIZED.get(quant.tag, "quantized") if quant is not read else facts.weight_dtype
        n_bytes = int(facts.weight_bytes * share)
        other = replace(facts, weight_bytes=n_bytes, weight_dtype=dtype)
        try:
            config = resolve(EngineOptions(), other, hardware, CPU.settings)
        except ConfigError as error:
            fits[quant.tag] = Fit(refusal=error.message)
            continue
        rate = _rate(loaded, config) if rate is None else rate
        room = room_of(config)
        fits[quant.tag] = Fit("", room.n_tokens, room.max_model_len, rate / share)
    return fits


def _rate(loaded: LoadedModel, config: EngineConfig) -> float:
    """Tokens a second of one request, whose every token reads the weights once."""
    program, _ = CPU.program(loaded, config)
    n_bytes = max(1.0, weights_read(program, Sizes(1, 1)))
    size = int(min(max(n_bytes, READ_BYTES[0]), READ_BYTES[1]))
    bandwidth = 1e9 * _native.measure("read", config.executor.threads, size)
    return DECODE_SHARE * bandwidth / n_bytes
