"""Tables of rotary embeddings.

Every machine makes the same bits: powers and angles come from decimals and integers, the rest from
additions and multiplications of float64. Powers, sines and cosines of NumPy or libm have last bits
that depend on the CPU's instructions.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from hashlib import blake2b
from itertools import accumulate, repeat
from math import ceil, floor, frexp
from operator import mul

import numpy as np
from numpy.typing import NDArray

from kvasir.models.spec import ROPE, ROPE_STILL, ROPE_WINDOW, ModelConfig, RopeConfig

_ROW_BITS = 10
_ROWS = 1 << _ROW_BITS
"""Of a table, made at a time: the float64 values of a long context would take 150 MB."""
_BITS = 160
"""Of the fractions that angles are computed in: float64's 53, and one for each doubling."""
_ONE = 1 << _BITS

Angles = NDArray[np.float64]
"""cos and sin, float64 [2, …, frequencies]."""


_PRECISE = Context(prec=60)


def inverse_frequencies(
    rope: RopeConfig, rotary_dim: int, positions: int = 0
) -> NDArray[np.float64]:
    """Radians per position of each pair, float64 [rotary_dim / 2], where the longest request has
    ``positions`` tokens."""
    theta, is_long = rope.theta, positions > rope.original_max_positions
    if rope.scaling == "dynamic" and is_long:
        grown = rope.factor * (positions / rope.original_max_positions) - (rope.factor - 1)
        theta = ntk_theta(theta, grown, rotary_dim)
    base = _powers(theta, rotary_dim)
    if rope.scaling in ("none", "dynamic"):
        return base
    if rope.scaling == "linear":
        return np.asarray(base / rope.factor)
    if rope.scaling in ("factors", "longrope"):
        factors = rope.long_factors if is_long and rope.long_factors else rope.factors
        return np.asarray(base / np.array(factors, np.float64))
    if rope.scaling == "llama3":
        return _llama3(base, rope)
    if rope.scaling == "yarn":
        return _yarn(base, rope)
    raise ValueError(f"unknown rope scaling {rope.scaling!r}")


def ln(x: float) -> float:
    """Correctly rounded."""
    return float(_PRECISE.ln(Decimal(x)))


def ntk_theta(theta: float, grown: float, rotary_dim: int) -> float:
    """theta * grown^(d / (d - 2)): it turns the last pair ``grown`` times as slowly, and the first
    as before; correctly rounded."""
    with localcontext(_PRECISE):
        return float(Decimal(theta) * Decimal(grown) ** (Decimal(rotary_dim) / (rotary_dim - 2)))


def _powers(theta: float, rotary_dim: int) -> NDArray[np.float64]:
    """theta^(-2i / rotary_dim), correctly rounded."""
    with localcontext(_PRECISE):
        step = Decimal(theta) ** (Decimal(-2) / rotary_dim)
        powers = accumulate(repeat(step, (rotary_dim - 1) // 2), mul, initial=Decimal(1))
        return np.array([float(power) for power in powers])


def _llama3(base: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    """Llama 3.1: short wavelengths stay, long ones are divided, a linear blend between."""
    turns = rope.original_max_positions * base / (2 * np.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(blend, 0.0, 1.0)
    return np.asarray(base * (keep + (1 - keep) / rope.factor))


def _yarn(base: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    """Pairs of many turns within the original context stay, those of few are divided, a linear
    blend between."""
    pairs, turns = len(base), (rope.beta_fast, rope.beta_slow)
    spread = max(ln(rope.theta), 1e-9)
    ends = [pairs * ln(rope.original_max_positions / (n * 2 * np.pi)) / spread for n in turns]
    low, high = (floor(ends[0]), ceil(ends[1])) if rope.truncate else ends
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    divided = np.clip((np.arange(pairs) - low) / ((high - low) or 0.001), 0.0, 1.0)
    return np.asarray(base * (1 - divided) + base / rope.factor * divided)


def query_scales(rope: RopeConfig, positions: int) -> NDArray[np.float64]:
    """What queries are multiplied with, float64 [positions]."""
    first, step = rope.query_offset, rope.original_max_positions
    scales = [1 + rope.query_beta * ln(1 + i) for i in range(-(-(first + positions) // step))]
    return np.repeat(np.array(scales), step)[first : first + positions]


def rope_table(
    rope: RopeConfig, rotary_dim: int, positions: int, *, queries: bool = False
) -> NDArray[np.float32]:
    """cos | sin of every angle, f32 [positions, rotary_dim], computed in float64. ``queries``: as
    queries turn, which may be longer than keys."""
    frequencies = inverse_frequencies(rope, rotary_dim, positions)
    lengths = np.full(positions, rope.attention_factor)
    if queries:
        lengths *= query_scales(rope, positions)
    n_bits = max(positions - 1, 0).bit_length()
    doubled = np.array([_doubled(f, n_bits) for f in frequencies.tolist()])
    doubled = doubled.reshape(len(frequencies), n_bits, 2).transpose(1, 2, 0)
    low, high = _multiples(doubled[:_ROW_BITS]), _multiples(doubled[_ROW_BITS:])
    table = np.empty((positions, 2 * len(frequencies)), np.float32)
    for start in range(0, positions, _ROWS):
        rows = table[start : start + _ROWS]
        angles = _rotated(low[:, : len(rows)], high[:, start // _ROWS])
        cut = slice(start, start + len(rows))
        rows[:] = np.concatenate(tuple(angles), axis=1) * lengths[cut, None]
    return table


def rope_digest(config: ModelConfig, positions: int) -> str:
    """Names the bits of the first rows of a model's tables, which its frequencies decide, and what
    cos and sin are multiplied with."""
    digest = blake2b(digest_size=16)
    dims = {layer.rope: layer.turned_dim for layer in config.layers}
    for name in (ROPE, ROPE_WINDOW, *config.ropes.keys() & {ROPE_STILL}):
        rope, bits = config.ropes.get(name), b""
        if rope is not None:
            bits = inverse_frequencies(rope, rope.rotary_dim or dims[name], positions).tobytes()
            lengths = (rope.attention_factor, rope.query_beta)
            if lengths != (1.0, 0.0):
                bits += np.array([*lengths, rope.original_max_positions]).tobytes()
                bits += rope.query_offset.to_bytes(4, "little") if rope.query_offset else b""
            if rope.axes is not None:
                bits += np.array([*rope.axes.sections, rope.axes.woven]).tobytes()
        digest.update(len(bits).to_bytes(8, "little") + bits)
    return digest.hexdigest()


def _multiples(doubled: NDArray[np.float64]) -> Angles:
    """Of every multiple of an angle, given its doublings [bits, 2, frequencies]: 0 first."""
    angles = np.zeros((2, 1, doubled.shape[2]))
    angles[0] = 1.0
    for half in doubled:
        angles = np.concatenate([angles, _rotated(angles, half)], axis=1)
    return angles


def _rotated(angles: Angles, by: Angles) -> Angles:
    """Sums of angles. Not as complex numbers: NumPy multiplies those as the CPU likes best."""
    (cos, sin), (cos_by, sin_by) = angles, by
    return np.stack([cos * cos_by - sin * sin_by, sin * cos_by + cos * sin_by])


def _doubled(frequency: float, n_bits: int) -> list[tuple[float, float]]:
    """cos and sin of 2^i ``frequency``, i < n_bits, correctly rounded from integer fractions."""
    numerator, denominator = frequency.as_integer_ratio()
    halvings = max(0, frexp(frequency)[1])
    cos, sin = _series((numerator << _BITS >> halvings) // denominator)
    found = []
    for i in range(halvings + n_bits):
        if i >= halvings:
            found.append((cos / _ONE, sin / _ONE))
        cos, sin = (cos * cos - sin * sin) >> _BITS, (cos * sin) >> (_BITS - 1)
    return found


def _series(x: int) -> tuple[int, int]:
    """cos and sin of an angle below 1, by Taylor's series; all in units of 1 / _ONE."""
    sums, term, i = [0, 0], _ONE, 0
    while term:
        sums[i % 2] += -term if i & 2 else term
        i += 1
        term = (term * x >> _BITS) // i
    return sums[0], sums[1]
