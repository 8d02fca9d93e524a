"""Ways to compute requests in which the executor drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import structs

from kvasir.config.speculation import LOOKAHEAD, RECYCLING
from kvasir.core.drawn import Drawn
from kvasir.core.plan import Row, RowOutput, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.exec.local import LocalExecutor
from kvasir.exec.rows import depths
from kvasir.sched.rows import accepted, is_draft
from tests.drafting import Drafts
from tests.exactness import WHOLE, Variant


def _k(n: int) -> Drafts:
    return Drafts(n, by_executor=True)


def _tree(n: int) -> Drafts:
    return Drafts(n, by_executor=True, width=3)


DRAFT_VARIANTS: tuple[Variant, ...] = (
    Variant("alone", n_seqs=1, chunk=WHOLE, drafts=_k(3)),
    Variant("batch, shuffled", n_seqs=7, chunk=WHOLE, order=2, drafts=_k(4)),
    Variant("one draft, chunks of 7", chunk=7, order=5, drafts=_k(1)),
    Variant("chunks of 3", chunk=3, n_seqs=2, drafts=_k(3)),
    Variant("overlapped", overlap=True, n_seqs=16, drafts=_k(4)),
    Variant("overlapped, chunks of 7, staggered", overlap=True, chunk=7, stagger=2, drafts=_k(3)),
    Variant("preempted", n_seqs=16, n_spare_blocks=2, drafts=_k(5), preemption_mode="recompute"),
    Variant("overlapped, preempted", overlap=True, n_spare_blocks=1, order=7, drafts=_k(4)),
    Variant(
        "swapped out and in",
        overlap=True,
        n_seqs=16,
        n_spare_blocks=1,
        cache=True,
        disk=True,
        preemption_mode="swap",
        drafts=_k(4),
    ),
    Variant("cached, staggered", cache=True, stagger=1, n_seqs=4, drafts=_k(3)),
    Variant(
        "cached, overlapped, preempted", cache=True, overlap=True, n_spare_blocks=1, drafts=_k(4)
    ),
    Variant("forks, overlapped", forks=True, cache=True, overlap=True, stagger=2, drafts=_k(3)),
    Variant("chunks by time, overlapped", stagger=1, overlap=True, itl_target=1e-4, drafts=_k(3)),
    Variant("replayed, overlapped", replay_after=60, overlap=True, order=9, drafts=_k(3)),
    Variant("trees", n_seqs=7, order=3, drafts=_tree(6)),
    Variant("trees, chunks of 7, staggered", chunk=7, stagger=2, drafts=_tree(5)),
    Variant("trees, overlapped, preempted", overlap=True, n_spare_blocks=1, drafts=_tree(6)),
    Variant(
        "trees, cached, forks, overlapped",
        forks=True,
        cache=True,
        overlap=True,
        stagger=2,
        drafts=_tree(7),
    ),
)

LAZY_VARIANTS = tuple(
    replace(variant, name=f"lazy, {variant.name}", drafts=replace(variant.drafts, is_lazy=True))
    for variant in DRAFT_VARIANTS
    if variant.drafts is not None
)
"""Without windows."""


RECYCLED, LOOKED_AHEAD = Drafts(7, by=RECYCLING), Drafts(8, by=LOOKAHEAD)
SEEING_VARIANTS = (
    Variant("recycled, three at a time", n_seqs=3, drafts=RECYCLED),
    Variant("looked ahead, chunks of 7, staggered", chunk=7, stagger=2, drafts=LOOKED_AHEAD),
    Variant("recycled, replayed, overlapped", replay_after=60, overlap=True, drafts=RECYCLED),
    Variant("looked ahead, replayed", replay_after=60, n_seqs=3, drafts=LOOKED_AHEAD),
    Variant("recycled, overlapped, preempted", overlap=True, n_spare_blocks=1, drafts=RECYCLED),
    Variant(
        "looked ahead, preempted, no spare block, chunks of 7",
        n_seqs=16,
        chunk=7,
        n_spare_blocks=0,
        drafts=LOOKED_AHEAD,
    ),
)
"""Drafters that see what the target finds likely."""
SEEING_CACHED = (
    Variant("recycled", cache=True, overlap=True, chunk=7, stagger=1, drafts=RECYCLED, order=25),
    Variant("looked ahead", cache=True, overlap=True, n_seqs=3, drafts=LOOKED_AHEAD, order=26),
)


class Counted:
    """Makes executors and counts what the target accepts of their drafts."""

    def __init__(self, make: Callable[[EngineSizes], LocalExecutor[Any]]) -> None:
        self._make = make
        self.n_verified = 0
        self.n_accepted = 0
        self.n_named = 0
        """Verified before their ids were known to the scheduler."""
        self.drafts: list[tuple[int, ...]] = []
        self.n_followed = 0
        """Tokens that the draft program took in, where plans say which."""
        self.n_computed = 0
        """Those of the target."""

    def __call__(self, sizes: EngineSizes) -> LocalExecutor[Any]:
        executor = self._make(sizes)
        run, drawn = executor.run, Drawn()

        def counted(plan: StepPlan) -> StepResult:
            nonlocal drawn
            before, result = drawn, run(plan)
            self._count(plan, before, result.outputs)
            self.n_followed += sum(len(row.tokens) for row in plan.follows or ())
            self.n_computed += plan.n_tokens
            drawn = Drawn.by(plan, result.outputs, result.drafts, result.siblings)
            self.drafts += [drafts for drafts in result.drafts if drafts]
            return result

        executor.run = counted
        return executor

    def _count(self, plan: StepPlan, drawn: Drawn, outputs: tuple[RowOutput, ...]) -> None:
        first = 0
        for row in plan.rows:
            own = outputs[first : first + row.n_logits]
            first += row.n_logits
            if is_draft(row):
                ids = drawn.ids(row.tokens)
                n = max(depths(row))
                self.n_verified += n
                self.n_accepted += min(n, len(accepted(_with(row, ids), own)))
                self.n_named += sum(token < 0 for token in row.tokens[1:])


def _with(row: Row, tokens: tuple[int, ...]) -> Row:
    return structs.replace(row, tokens=tokens)
