"""Counter-based noise: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011).

The noise of a token depends on the seed, the output index and the token id alone, so a draw is the
same in any batch, after any preemption and under speculation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir.sampling.numerics import F32, log

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
TARGET_NOISE, DRAFT_NOISE, VERDICT_NOISE = range(3)
"""Streams: of what the target draws, of what a draft program draws by itself, and of whether its
token stays."""
_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


def philox4x32(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Ten rounds of Philox4x32 on counters uint32 [..., 4]; returns uint32 [..., 4]."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    low, half = np.uint64(_MASK), np.uint64(32)
    for _ in range(10):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1 = (p1 >> half) ^ c1 ^ np.uint64(k0), p1 & low
        c2, c3 = (p0 >> half) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def draws(
    seed: int, out_index: int, tokens: NDArray[np.int64], stream: int = TARGET_NOISE
) -> NDArray[np.uint32]:
    """The uint32 behind each token's noise: word token & 3 of counter (token >> 2, out_index,
    stream)."""
    blocks, place = np.unique(tokens >> 2, return_inverse=True)
    counter = np.zeros((blocks.size, 4), np.uint32)
    counter[:, 0] = blocks
    counter[:, 1] = out_index & _MASK
    counter[:, 2] = out_index >> 32
    counter[:, 3] = stream
    words = philox4x32(counter, (seed & _MASK, seed >> 32))
    chosen: NDArray[np.uint32] = words[place.reshape(tokens.shape), tokens & 3]
    return chosen


def noise(seed: int, out_index: int, tokens: NDArray[np.int64], stream: int = TARGET_NOISE) -> F32:
    """Standard exponential variates E > 0, float32, one per token id."""
    return exponential(draws(seed, out_index, tokens, stream))


def below_one(words: NDArray[np.uint32]) -> F32:
    """v = (word + 1/2) / 2**32, below 1."""
    v = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    found: F32 = np.minimum(v, _BELOW_ONE)
    return found


def exponential(words: NDArray[np.uint32]) -> F32:
    """E = -log1p(-v); v = 1 is excluded: it would win every draw."""
    v = below_one(words)
    u = np.float32(1) - v
    lost: F32 = (v + (u - np.float32(1))) / u
    return lost - log(u)
