"""Sizes of rows that are several streams."""

from __future__ import annotations

import msgspec


class StreamSpec(msgspec.Struct, frozen=True):
    """Rows of several streams (AltUp, Baykal et al. 2023), of which a layer computes one and
    corrects the others by it; and the low-rank matrices beside its attention (LAuReL, Menghani et
    al. 2024)."""

    n: int
    active: int
    """The one that layers compute."""
    rank: int
    """Of those matrices."""
    scaled: bool
    """The corrected one has a factor of each column where the embeddings of the layer read it."""
