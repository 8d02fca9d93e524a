"""The classical rule of speculation (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318),
in NumPy float32; ``native/sample/classical.h`` gives the same bits.

A draft program draws a token from its own shares q, with noise of its own. It stays with
probability min(1, p / q), p being the target's shares; else one is drawn from what p has beyond q,
with the noise of the target. Both are shares of what filters leave. What is drawn has the
distribution of the target, but which token it is depends on the draft. A draft that is certain (q
is 1 for one token) needs none of this: that the target draws it has the probability p already, and
where it draws another one, that has the distribution of the rest.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvasir.sampling import numerics
from kvasir.sampling.numerics import F32
from kvasir.sampling.philox import VERDICT_NOISE, below_one, draws, noise

MASS_ONE = 2.0**40
"""Shares are summed as integers of this scale (the likeliest token is one), so that no order of
adding can matter."""
SMALLEST = np.finfo(np.float32).tiny


class Role(Struct, frozen=True):
    """What a row is to the rule, where drafts are kept."""

    drafts: bool = False
    """It draws for a draft program."""
    drafted: int = -1
    """What that drew of this output; -1: nobody did."""
    n_siblings: int = 0
    """It draws as many more for a draft program, the next best, where parameters are usual."""


TARGET = Role()


class Proposals:
    """Of one slot the newest drafted tokens, at most ``n_most``, and the shares that they were
    drawn from."""

    def __init__(self, n_most: int) -> None:
        self._n_most = n_most
        self._kept: dict[int, tuple[int, int, F32]] = {}

    def forget(self, out_index: int) -> None:
        self._kept.pop(out_index % self._n_most, None)

    def drew(self, out_index: int, token: int, q: F32) -> None:
        self._kept[out_index % self._n_most] = out_index, token, q

    def of(self, out_index: int, token: int) -> F32 | None:
        """None: ``token`` was not drafted from any."""
        index, own, q = self._kept.get(out_index % self._n_most, (-1, -1, np.empty(0, np.float32)))
        return q if (index, own) == (out_index, token) else None


def masses(share: F32) -> NDArray[np.int64]:
    found: NDArray[np.int64] = (share.astype(np.float64) * MASS_ONE).astype(np.int64)
    return found


def shares(z: F32) -> F32:
    """Of each token in all that are left; ``z`` float32 [V] are their scaled logits, at most 0, and
    -inf of what is left out. 0 where a share is no normal number."""
    weights = numerics.exp(z)
    found: F32 = weights / np.float32(np.float64(masses(weights).sum()) / MASS_ONE)
    return np.where(found < SMALLEST, np.float32(0), found)


def judged(p: F32, q: F32, drafted: int, seed: int, out_index: int) -> int:
    """What is drawn of ``p`` float32 [V] where ``drafted`` was drawn of ``q``. Where rounding
    leaves nothing of p beyond q, the drafted token stays."""
    word = draws(seed, out_index, np.zeros(1, np.int64), VERDICT_NOISE)
    if below_one(word)[0] * q[drafted] < p[drafted]:
        return drafted
    left = p - q
    ids = np.flatnonzero(left >= SMALLEST)
    if not ids.size:
        return drafted
    scores = numerics.log(left[ids]) - numerics.log(noise(seed, out_index, ids))
    return int(ids[np.argmax(scores)])
