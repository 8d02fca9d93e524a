"""Ways to compute requests that fork from each other."""

from __future__ import annotations

from dataclasses import replace

from tests.drafting import Drafts
from tests.exactness import WHOLE, Variant

FORK_VARIANTS: tuple[Variant, ...] = tuple(
    replace(variant, forks=True)
    for variant in (
        Variant("forks, all at once", n_seqs=64, chunk=WHOLE),
        Variant("forks, one after the other", n_seqs=1, chunk=WHOLE),
        Variant("forks, chunks of 7", chunk=7, order=31),
        Variant("forks, overlapped, staggered", overlap=True, chunk=7, stagger=2, order=32),
        Variant("forks, preempted", n_seqs=16, n_spare_blocks=1, order=33),
        Variant("forks, overlapped, preempted", overlap=True, n_spare_blocks=0, order=34),
        Variant("forks, tree drafts", drafts=Drafts(6, 1), overlap=True, stagger=3),
        Variant("forks, cache", cache=True, overlap=True, stagger=2, order=35),
        Variant("forks, cache, preempted", cache=True, n_seqs=16, n_spare_blocks=1, order=36),
        Variant("forks, cache, reset again and again", cache=True, reset_every=9, stagger=1),
    )
)
