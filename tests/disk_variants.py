"""Ways to compute requests with blocks that go to disk and come back."""

from __future__ import annotations

from dataclasses import replace

from tests.drafting import Drafts
from tests.exactness import Variant
from tests.sharing_variants import IMPATIENT

DISK_VARIANTS: tuple[Variant, ...] = tuple(
    replace(variant, cache=True, disk=True)
    for variant in (
        Variant("evicted and reloaded", n_seqs=1, n_spare_blocks=0, order=31),
        Variant("evicted and reloaded, batch of 4", n_seqs=4, n_spare_blocks=2, stagger=2),
        Variant("swapped", n_seqs=16, n_spare_blocks=2, preemption_mode="swap", order=32),
        Variant("swapped, overlapped, chunks of 7", n_seqs=8, n_spare_blocks=1, chunk=7,
                overlap=True, preemption_mode="swap", order=33),
        Variant("preempted and recomputed", n_seqs=16, n_spare_blocks=2, order=34,
                preemption_mode="recompute"),
        Variant("tree drafts, overlapped, preempted", drafts=Drafts(6, 1), overlap=True,
                n_spare_blocks=1, order=35),
        Variant("replayed, overlapped, preempted", replay_after=150, overlap=True,
                n_spare_blocks=1),
        Variant("reset again and again", n_seqs=4, n_spare_blocks=1, reset_every=150, overlap=True),
        Variant("forks and holds, evicted and reloaded", forks=True, n_seqs=4, n_spare_blocks=2,
                stagger=2),
        Variant("forks and holds, swapped, overlapped", forks=True, n_seqs=8, n_spare_blocks=1,
                chunk=7, overlap=True, preemption_mode="swap", order=39),
        Variant("realtime preempts batch, swapped", is_mixed=True, sharing=IMPATIENT, n_seqs=3,
                n_spare_blocks=2, stagger=2, preemption_mode="swap", order=40),
        Variant("forks and classes, tree drafts, overlapped, restarted", forks=True, is_mixed=True,
                sharing=IMPATIENT, n_seqs=4, n_spare_blocks=2, stagger=1, overlap=True,
                drafts=Drafts(6, 1), again=True, order=41),
        Variant("restarted", n_seqs=8, again=True, order=36),
        Variant("restarted, overlapped, evicted", n_seqs=4, n_spare_blocks=1, overlap=True,
                again=True, order=37),
        Variant("restarted, some blocks damaged", n_seqs=8, again=True, damaged=True, order=38),
    )
)  # fmt: skip
