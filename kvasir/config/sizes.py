"""Byte sizes as people write them."""

from __future__ import annotations

import re

from kvasir.core.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": 2**10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 2**20,
    "g": 10**9,
    "gb": 10**9,
    "gib": 2**30,
    "t": 10**12,
    "tb": 10**12,
    "tib": 2**40,
}


def parse_size(value: int | str, name: str = "size") -> int:
    """Bytes in ``value``: a number, or text such as "512MiB" or "1.5 GB". Raises ConfigError."""
    if isinstance(value, int):
        n_bytes = value
    else:
        match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,6})?)\s*([a-zA-Z]*)\s*", value)
        if match is None or match[2].lower() not in _UNITS:
            raise ConfigError(f"{name} is {value!r}: use bytes, or a unit such as 512MiB or 2GiB")
        n_bytes = int(float(match[1]) * _UNITS[match[2].lower()])
    if not 0 < n_bytes < 2**60:
        raise ConfigError(f"{name} is {value!r}: needs 1 byte to 1 EiB")
    return n_bytes


def format_size(n_bytes: int) -> str:
    """A short text in binary units: "64 MiB", "1.5 GiB"."""
    power = min(max(0, n_bytes.bit_length() - 1) // 10, 4)
    number = f"{n_bytes / 1024**power:.1f}".removesuffix(".0")
    return f"{number} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
