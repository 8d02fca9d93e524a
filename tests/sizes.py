"""Configs of schedulers, told in one line."""

from __future__ import annotations

from typing import Any

from msgspec.structs import fields, replace

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.groups import KVGroup
from kvasir.core.sizes import EngineSizes

_SIZES = {field.name for field in fields(EngineSizes)}


def config_of(
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    n_blocks: int,
    block_size: int,
    *,
    vocab_size: int = 256,
    windows: tuple[KVGroup, ...] = (),
    **more: Any,
) -> SchedulerConfig:
    """``more``: the other fields of the config, or sizes."""
    others = {name: more.pop(name) for name in _SIZES & more.keys()}
    sizes = EngineSizes(
        vocab_size,
        max_model_len,
        max_num_seqs,
        max_num_batched_tokens,
        n_blocks,
        block_size,
        windows,
        **others,
    )
    return SchedulerConfig(sizes, **more)


def changed(config: SchedulerConfig, **changes: Any) -> SchedulerConfig:
    """``config`` with other sizes, or other fields."""
    sizes = {name: changes.pop(name) for name in _SIZES & changes.keys()}
    return replace(config, sizes=replace(config.sizes, **sizes), **changes)
