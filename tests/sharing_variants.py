"""Policies, priorities and preemption as ways to compute requests (tests.exactness)."""

from __future__ import annotations

from kvasir.config.resolved import SharingConfig
from tests.exactness import Variant

IMPATIENT = SharingConfig(preemption_threshold=0.0)

SHARING_VARIANTS: tuple[Variant, ...] = (
    Variant("first come, first served", sharing=SharingConfig(policy="fcfs"), n_spare_blocks=1),
    Variant("static batches", n_seqs=4, sharing=SharingConfig(policy="static"), stagger=2),
    Variant("contiguous", sharing=SharingConfig(kv_policy="contiguous"), n_spare_blocks=4),
    Variant("classes and tenants", n_seqs=3, chunk=16, is_mixed=True, order=23),
    Variant(
        "realtime preempts batch",
        n_seqs=3,
        stagger=4,
        n_spare_blocks=2,
        sharing=IMPATIENT,
        is_mixed=True,
        order=24,
    ),
    Variant(
        "realtime preempts batch, overlapped, cached",
        n_seqs=3,
        stagger=4,
        overlap=True,
        cache=True,
        sharing=IMPATIENT,
        itl_target=0.0,
        is_mixed=True,
        order=25,
    ),
)
