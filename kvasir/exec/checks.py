"""Does a plan keep the promises that executors rely on?"""

from __future__ import annotations

from collections.abc import Collection

from kvasir.core.errors import KvasirError
from kvasir.core.groups import NO_BLOCK, KVGroup, first_block
from kvasir.core.plan import Copy, Row, StepPlan
from kvasir.exec.base import ExecutorSpec


def check_plan(
    plan: StepPlan, spec: ExecutorSpec, open_slots: Collection[int], n_drawn: int
) -> None:
    """Raises KvasirError naming the first broken promise.

    ``open_slots``: slots opened by earlier plans. ``n_drawn``: logit rows of the previous plan.
    """
    slots = {*open_slots, *(opening.slot for opening in plan.opens)}
    rows = [row.slot for row in plan.rows]
    need(bool(plan.rows), f"step {plan.step} has no rows")
    need(plan.n_tokens <= spec.max_num_batched_tokens, f"{plan.n_tokens} tokens in one step")
    need(len(set(rows)) == len(rows), f"a slot has two rows: {rows}")
    need(all(0 <= slot < spec.max_num_seqs for slot in slots), f"slots {sorted(slots)}")
    need(slots.issuperset(rows), f"rows of slots {rows}, open are {sorted(slots)}")
    need(slots.issuperset(slot for slot, _ in plan.commits), "a commit to a slot never opened")
    for copy in plan.copies:
        _check_copy(copy, spec)
    for row in plan.rows:
        _check_row(row, spec, n_drawn)
    for group in range(len(spec.groups)):
        _check_owners(plan, spec.block_size, group)


def _check_copy(copy: Copy, spec: ExecutorSpec) -> None:
    groups = spec.groups
    need(
        len(copy.src) == len(copy.dst) == len(groups)
        and all(0 <= x < group.n_blocks for x, group in zip(copy.src, groups, strict=True))
        and all(0 <= x < group.n_blocks for x, group in zip(copy.dst, groups, strict=True)),
        f"a copy from blocks {copy.src} to {copy.dst} of {groups}",
    )
    need(not any(group.state_bytes for group in groups), "a copy of a part of a state")
    need(0 < copy.n_rows <= spec.block_size, f"{copy.n_rows} rows of {spec.block_size} copied")


def _check_row(row: Row, spec: ExecutorSpec, n_drawn: int) -> None:
    end = row.start + len(row.tokens)
    need(bool(row.tokens) and row.start >= 0, f"row of {len(row.tokens)} at {row.start}")
    need(end <= spec.max_model_len, f"storage up to {end}, the limit is {spec.max_model_len}")
    need(len(row.tables) == len(spec.groups), f"{len(row.tables)} tables for {spec.groups}")
    for blocks, group in zip(row.tables, spec.groups, strict=True):
        _check_table(row, blocks, group, spec.block_size)
    need(
        all(-n_drawn <= token < spec.vocab_size for token in row.tokens),
        f"tokens {row.tokens} outside the vocabulary of {spec.vocab_size} and {n_drawn} references",
    )
    need(0 <= row.n_logits <= len(row.tokens), f"{row.n_logits} logit rows")
    need(len(row.targets) in (0, row.n_logits), f"{len(row.targets)} targets")
    need(
        not row.parents
        or (
            len(row.parents) == len(row.tokens) == row.n_logits
            and row.parents[0] == -1
            and all(0 <= parent < i for i, parent in enumerate(row.parents) if i)
        ),
        f"parents {row.parents} are not a tree from the first token",
    )


def _check_table(row: Row, blocks: tuple[int, ...], group: KVGroup, block_size: int) -> None:
    """Blocks are missing only where the row's window has left them."""
    end, unseen = row.start + len(row.tokens), first_block(row.start, group.window, block_size)
    n_gone = blocks[:unseen].count(NO_BLOCK)
    held = blocks[n_gone:]
    need(
        len(blocks) == -(-end // block_size)
        and len(set(held)) == len(held)
        and all(0 <= block < group.n_blocks for block in held),
        f"{end} tokens in blocks {blocks} of {block_size}",
    )


def _check_owners(plan: StepPlan, block_size: int, group: int) -> None:
    """A block that one row writes belongs to no other row of the step."""
    writers: dict[int, int] = {}
    for row in plan.rows:
        for block in row.tables[group][row.start // block_size :]:
            need(block not in writers, f"two rows write block {block}")
            writers[block] = row.slot
    for row in plan.rows:
        for block in row.tables[group]:
            need(writers.get(block, row.slot) == row.slot, f"block {block} has two owners")


def refuse_states(spec: ExecutorSpec) -> None:
    """Raises KvasirError on a state group: no op reads or writes one yet."""
    states = [group.kind for group in spec.groups if group.state_bytes]
    if states:
        raise KvasirError(f"this executor has no op for {', '.join(states)}")


def need(is_kept: bool, what: str) -> None:
    """Raises KvasirError unless a promise is kept."""
    if not is_kept:
        raise KvasirError(f"invalid plan: {what}")
