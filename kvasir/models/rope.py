"""Tables of rotary embeddings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir.models.spec import RopeConfig

_ROWS = 1024
"""Of a table, made at a time: the float64 values of a long context would take 150 MB."""


def inverse_frequencies(rope: RopeConfig, rotary_dim: int) -> NDArray[np.float64]:
    """Radians per position of each pair, float64 [rotary_dim / 2]."""
    base = rope.theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    if rope.scaling == "none":
        return base
    if rope.scaling == "linear":
        return np.asarray(base / rope.factor)
    if rope.scaling == "factors":
        return np.asarray(base / np.array(rope.factors, np.float64))
    if rope.scaling == "llama3":
        return _llama3(base, rope)
    raise ValueError(f"unknown rope scaling {rope.scaling!r}")


def _llama3(base: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    """Llama 3.1: short wavelengths stay, long ones are divided, a linear blend between."""
    turns = rope.original_max_positions * base / (2 * np.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(blend, 0.0, 1.0)
    return np.asarray(base * (keep + (1 - keep) / rope.factor))


def rope_table(rope: RopeConfig, rotary_dim: int, positions: int) -> NDArray[np.float32]:
    """cos | sin of every angle, f32 [positions, rotary_dim], computed in float64."""
    frequencies = inverse_frequencies(rope, rotary_dim)
    table = np.empty((positions, 2 * len(frequencies)), np.float32)
    for start in range(0, positions, _ROWS):
        rows = table[start : start + _ROWS]
        angles = np.arange(start, start + len(rows), dtype=np.float64)[:, None] * frequencies
        rows[:] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return table
