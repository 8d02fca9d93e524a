"""Where KV blocks lie on disk, and how many."""

from __future__ import annotations

from pathlib import Path

from kvasir.config.options import EngineOptions
from kvasir.config.resolved import DiskConfig
from kvasir.config.sizes import format_size, parse_size
from kvasir.core.errors import ConfigError

DEFAULT_DISK_SIZE = "10GiB"


def disk_config(options: EngineOptions, reasons: dict[str, str]) -> DiskConfig | None:
    """None without a directory. Adds to the reasons; raises ConfigError."""
    gib = options.swap_space
    if options.kv_disk is None:
        if gib:
            raise ConfigError(
                f"swap_space {gib} asks for KV blocks in host memory, where a CPU has them "
                "already: use --kv-disk DIR --kv-disk-size"
            )
        if options.kv_disk_size is not None:
            raise ConfigError("kv_disk_size needs a directory: add --kv-disk DIR")
        return None
    if not options.enable_prefix_caching:
        raise ConfigError("kv_disk is found through the prefix cache: enable prefix caching")
    if gib and options.kv_disk_size is not None:
        raise ConfigError("kv_disk_size and swap_space are names of one size: give one of them")
    size, why = options.kv_disk_size, "as asked"
    if size is None:
        size = f"{gib}GiB" if gib else DEFAULT_DISK_SIZE
        why = "swap_space" if gib else "default"
    n_bytes = parse_size(size, "kv_disk_size")
    reasons["kv_disk"] = f"{options.kv_disk}, {format_size(n_bytes)}: {why}"
    return DiskConfig(Path(options.kv_disk).expanduser(), n_bytes)
