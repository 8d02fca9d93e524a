"""What helps when memory is short: each remedy resolved like the options themselves."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec.structs import replace as with_fields

from kvasir.config.hardware import Hardware
from kvasir.config.options import EngineOptions
from kvasir.config.resolve import Settings, resolve
from kvasir.config.resolved import EngineConfig, ModelFacts
from kvasir.core.errors import ConfigError

FOUR_BIT = 4.5 / 16
"""Bytes of 4-bit weights with a scale per 32, as a share of 16-bit ones."""
MIN_LENGTH = 256
"""Tokens below which a shorter context is not advised."""


class Room(msgspec.Struct, frozen=True):
    """What a configuration has room for."""

    kv_bytes: int
    token_bytes: float
    """KV bytes of one token at the length of a request."""
    n_tokens: int
    max_model_len: int
    concurrency: float
    """Requests of ``max_model_len`` tokens at a time."""


class Remedy(msgspec.Struct, frozen=True):
    """One change of the options, with what it gives and what it costs."""

    change: str
    cost: str
    room: Room | None
    """None: it does not start with this either."""


class MemoryAdvice(msgspec.Struct, frozen=True):
    """``room`` is None, and ``refusal`` says why, when the options do not start."""

    weight_bytes: int
    free_memory: int
    room: Room | None
    refusal: str
    remedies: tuple[Remedy, ...]


def advise(
    options: EngineOptions,
    model: ModelFacts,
    hardware: Hardware,
    settings: Settings,
    draft: ModelFacts | None = None,
) -> MemoryAdvice:
    """Every remedy is given the KV bytes and the context that ``options`` come to, so that they
    compare. ``draft``: of the draft model that they name."""

    def room(options: EngineOptions, model: ModelFacts) -> Room | None:
        try:
            return room_of(resolve(options, model, hardware, settings, draft=draft))
        except ConfigError:
            return None

    refusal, config = "", None
    try:
        config = resolve(options, model, hardware, settings, draft=draft)
    except ConfigError as error:
        refusal = error.message
    base = options if config is None else _same_bytes(options, config)
    remedies = tuple(
        Remedy(change, cost, room(replace(base, **changes), facts))  # type: ignore[arg-type]
        for change, cost, changes, facts in _changes(options, model, config)
    )
    own = None if config is None else room_of(config)
    n_bytes = model.weight_bytes + (0 if draft is None else draft.weight_bytes)
    return MemoryAdvice(n_bytes, hardware.free_memory, own, refusal, remedies)


def room_of(config: EngineConfig) -> Room:
    """What a resolved configuration has room for."""
    kv, length = config.kv, config.sizes.max_model_len
    concurrency = kv.concurrency(length)
    return Room(kv.n_bytes, kv.n_bytes / (concurrency * length), kv.n_tokens, length, concurrency)


Change = tuple[str, str, dict[str, object], ModelFacts]


def _changes(
    options: EngineOptions, model: ModelFacts, config: EngineConfig | None
) -> list[Change]:
    found: list[Change] = []
    for name, cost in (
        ("fp8_e4m3", "rounds keys and values to 8 bits"),
        ("int8", "rounds keys and values to 8 bits"),
    ):
        if options.kv_cache_dtype in ("auto", "float32", "bfloat16"):
            found.append((f"--kv-cache-dtype {name}", cost, {"kv_cache_dtype": name}, model))
    length = options.max_model_len or model.context_length
    length = min(length, config.sizes.max_model_len) if config is not None else length
    if length // 2 >= MIN_LENGTH:
        half: dict[str, object] = {"max_model_len": length // 2}
        cost = "longer requests are refused"
        found.append((f"--max-model-len {length // 2}", cost, half, model))
    if model.weight_dtype != "quantized":
        share = FOUR_BIT * (0.5 if model.weight_dtype == "float32" else 1)
        small = with_fields(
            model, weight_bytes=int(model.weight_bytes * share), weight_dtype="quantized"
        )
        cost = "rounds the weights"
        freed = _freed(config, model, small)
        found.append(("a 4-bit file of the model", cost, freed, small))
    if options.enable_prefix_caching and any(model.windows):
        off: dict[str, object] = {"enable_prefix_caching": False, "kv_disk": None}
        cost = "equal beginnings are computed again"
        found.append(("--no-enable-prefix-caching", cost, off, model))
    return found


def _freed(config: EngineConfig | None, model: ModelFacts, small: ModelFacts) -> dict[str, object]:
    """What smaller weights leave is given to the KV blocks."""
    if config is None:
        return {"kv_memory": None}
    return {"kv_memory": config.kv.n_bytes + model.weight_bytes - small.weight_bytes}


def _same_bytes(options: EngineOptions, config: EngineConfig) -> EngineOptions:
    return replace(
        options,
        kv_memory=config.kv.n_bytes,
        max_model_len=config.sizes.max_model_len,
        gpu_memory_utilization=None,
        free_gpu_memory_fraction=None,
        max_total_tokens=None,
    )
