"""What a step is expected to cost before any was measured: the costs that the ops state, on a
machine of ordinary speed."""

from __future__ import annotations

from kvasir.ir.cost import program_cost
from kvasir.ir.ops import Sizes
from kvasir.ir.program import Program
from kvasir.timing.cost import Costs

FLOPS = 1e11
"""Operations that a thread does in a second."""
BYTES = 1e10
"""Bytes that it moves in a second. The first measured steps correct both."""


def prior_costs(program: Program, n_threads: int) -> Costs:
    """Each constant is what one more row, token, pair or entry adds to the smallest step."""

    def seconds(sizes: Sizes) -> float:
        flops, moved = program_cost(program, sizes)
        return (flops / FLOPS + moved / BYTES) / n_threads

    smallest = seconds(Sizes(1, 1))
    row = seconds(Sizes(1, 2)) - smallest
    token = seconds(Sizes(2, 1)) - smallest
    return Costs(
        step=smallest - row - token,
        row=row,
        token=token,
        pair=seconds(Sizes(1, 1, attended=1)) - smallest,
        entry=seconds(Sizes(1, 1, kv_entries=1)) - smallest,
    )
