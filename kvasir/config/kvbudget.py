"""How many bytes the KV blocks get: as asked in one of several ways, else planned."""

from __future__ import annotations

from kvasir.config.hardware import Hardware
from kvasir.config.kvgroups import KVDivision
from kvasir.config.options import EngineOptions
from kvasir.config.resolved import ModelFacts
from kvasir.config.sizes import format_size, parse_size
from kvasir.core.errors import ConfigError
from kvasir.core.groups import blocks_for

TYPICAL_TOKENS = 2048
"""Tokens of a request that the default KV memory is planned for."""
KV_FRACTION = 0.4
"""Share of the free memory (after the weights) that the default KV memory may take."""
SAFE_SHARE = 0.9
"""Above it too little is left for activations, the API process and the files of the system."""
WAYS = ("kv_memory", "gpu_memory_utilization", "free_gpu_memory_fraction")


def kv_budget(
    options: EngineOptions,
    model: ModelFacts,
    hardware: Hardware,
    division: KVDivision,
    n_seqs: int,
) -> tuple[int, str]:
    """Bytes of the KV blocks, and why. Raises ConfigError when they are asked for in two ways, or
    do not fit the machine."""
    asked = [name for name in WAYS if getattr(options, name) is not None]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} set the same memory: give one of them")
    free = max(0, hardware.free_memory - model.weight_bytes)
    if options.kv_memory is not None:
        return _asked(options.kv_memory, free, model, hardware), "as asked"
    if options.gpu_memory_utilization is not None:
        share = options.gpu_memory_utilization
        n_bytes = int(hardware.free_memory * share) - model.weight_bytes
        if n_bytes <= 0:
            raise ConfigError(
                f"gpu_memory_utilization {share:g} of {format_size(hardware.free_memory)} free "
                f"memory is less than the weights of {format_size(model.weight_bytes)}: raise it, "
                "or take a model with smaller weights"
            )
        return n_bytes, f"{share:.0%} of {format_size(hardware.free_memory)} free, less the weights"
    if options.free_gpu_memory_fraction is not None:
        share = options.free_gpu_memory_fraction
        return int(free * share), f"{share:.0%} of {format_size(free)} free after the weights"
    return _planned(options, model, free, division, n_seqs)


def warnings_of(options: EngineOptions) -> tuple[str, ...]:
    """What is done as asked and may be regretted."""
    shares = {name: getattr(options, name) for name in WAYS[1:]}
    return tuple(
        f"{name} {share:g} leaves little for activations and for files that weights may be "
        f"mapped from: {SAFE_SHARE - 0.05:.2f} to {SAFE_SHARE:.2f} is safe"
        for name, share in shares.items()
        if share is not None and share > SAFE_SHARE
    )


def _asked(size: int | str, free: int, model: ModelFacts, hardware: Hardware) -> int:
    asked = parse_size(size, "kv_memory")
    if asked > free:
        raise ConfigError(
            f"kv_memory {format_size(asked)} and weights of "
            f"{format_size(model.weight_bytes)} exceed the free memory of "
            f"{format_size(hardware.free_memory)}: lower --kv-memory"
        )
    return asked


def _planned(
    options: EngineOptions, model: ModelFacts, free: int, division: KVDivision, n_seqs: int
) -> tuple[int, str]:
    length = options.max_model_len or model.context_length
    usual, size = min(length, TYPICAL_TOKENS), options.block_size
    n_blocks = max(n_seqs * blocks_for(usual, size), blocks_for(length, size))
    wanted, share = division.n_bytes(n_blocks), int(free * KV_FRACTION)
    if wanted > share:
        return share, f"{KV_FRACTION:.0%} of {format_size(free)} free after the weights"
    return wanted, f"{n_seqs} requests of {usual} tokens, or one of {length}"
