"""Does a plan keep the promises that executors rely on?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

from kvasir.core.drawn import Drawn
from kvasir.core.errors import KvasirError
from kvasir.core.groups import NO_BLOCK, KVGroup, Tables, first_block
from kvasir.core.plan import MAX_DRAFTS, Copy, Row, StepPlan
from kvasir.core.sizes import EngineSizes
from kvasir.ir.bundle import POOL, TARGET, Bundle, draft_name
from kvasir.sched.rows import is_draft


def check_plan(
    plan: StepPlan,
    sizes: EngineSizes,
    tables: Mapping[int, Tables],
    open_slots: Collection[int],
    drawn: Drawn,
) -> None:
    """Raises KvasirError naming the first broken promise.

    ``tables``: of the slot of each row, as far as its tokens and those that it drafts.
    ``open_slots``: slots opened by earlier plans. ``drawn``: by the previous plan.
    """
    slots = {*open_slots, *(opening.slot for opening in plan.opens)}
    rows = [row.slot for row in plan.rows]
    need(bool(plan.rows or plan.towers or plan.opens), f"step {plan.step} has no rows")
    need(plan.n_tokens <= sizes.max_num_batched_tokens, f"{plan.n_tokens} tokens in one step")
    need(len(set(rows)) == len(rows), f"a slot has two rows: {rows}")
    need(all(0 <= slot < sizes.max_num_seqs for slot in slots), f"slots {sorted(slots)}")
    need(slots.issuperset(rows), f"rows of slots {rows}, open are {sorted(slots)}")
    need(slots.issuperset(slot for slot, _ in plan.commits), "a commit to a slot never opened")
    for copy in plan.copies:
        _check_copy(copy, sizes)
    for group in sizes.groups:
        if group.state_bytes:
            _check_states(plan, group)
    for row in plan.rows:
        _check_row(row, sizes, drawn)
        _check_drafts(row)
        for blocks, one in zip(tables[row.slot], sizes.groups, strict=True):
            _check_table(row, blocks, one, sizes.block_size)
    _check_follows(plan, sizes)
    for i in range(len(sizes.groups)):
        _check_owners(plan, sizes.block_size, {slot: x[i] for slot, x in tables.items()})


def _check_copy(copy: Copy, sizes: EngineSizes) -> None:
    groups = sizes.groups
    need(
        len(copy.src) == len(copy.dst) == len(groups)
        and all(0 <= x < group.n_blocks for x, group in zip(copy.src, groups, strict=True))
        and all(0 <= x < group.n_blocks for x, group in zip(copy.dst, groups, strict=True)),
        f"a copy from blocks {copy.src} to {copy.dst} of {groups}",
    )
    need(not any(group.state_bytes for group in groups), "a copy of a part of a state")
    need(
        0 < copy.n_entries <= sizes.block_size,
        f"{copy.n_entries} entries of {sizes.block_size} copied",
    )


def _check_states(plan: StepPlan, group: KVGroup) -> None:
    """No more is drafted than is kept, and nothing by the executor."""
    drafting = [row.slot for row in plan.rows if row.parents or row.n_drafts]
    need(group.drafts > 0 or not (drafting or plan.moves), f"slots {drafting} draft over a state")
    for row in plan.rows:
        need(not (group.drafts and row.n_drafts), f"slot {row.slot} asks for drafts over a state")
        is_kept = not group.drafts or not is_draft(row) or len(row.tokens) <= 1 + group.drafts
        need(is_kept, f"{len(row.tokens) - 1} drafts over states that keep {group.drafts}")


def _check_row(row: Row, sizes: EngineSizes, drawn: Drawn) -> None:
    end = row.end
    need(bool(row.tokens) and row.start >= 0, f"row of {len(row.tokens)} at {row.start}")
    need(end <= sizes.max_model_len, f"storage up to {end}, the limit is {sizes.max_model_len}")
    need(
        all(
            token < sizes.vocab_size and (token >= 0 or drawn.knows(token)) for token in row.tokens
        ),
        f"tokens {min(row.tokens)} to {max(row.tokens)} outside {sizes.vocab_size} words and "
        f"{len(drawn.tokens)} references",
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


def _check_drafts(row: Row) -> None:
    """Draws alone, behind which drafts go on."""
    need(
        not row.n_drafts
        or (
            0 < row.n_drafts <= MAX_DRAFTS
            and not row.targets
            and row.n_logits in (1, len(row.tokens))
        ),
        f"{row.n_drafts} drafts after {row}",
    )
    is_chain = row.n_logits == len(row.tokens) and not (row.parents or row.targets)
    need(
        not row.n_sampled or (0 < row.n_sampled < row.n_logits and is_chain),
        f"{row.n_sampled} sampled drafts in {row}",
    )


def _check_follows(plan: StepPlan, sizes: EngineSizes) -> None:
    """No more than a step has, of rows of the plan, and whole where something is drafted."""
    if plan.follows is None:
        return
    ends = {x.slot: x.start + (1 if x.parents else len(x.tokens)) for x in plan.rows}
    followed = {row.slot: row.start + len(row.tokens) for row in plan.follows}
    n_tokens = sum(len(row.tokens) for row in plan.follows)
    need(n_tokens <= sizes.max_num_batched_tokens, f"a draft program takes in {n_tokens} tokens")
    need(len(followed) == len(plan.follows), f"a slot is followed twice: {plan.follows}")
    for row in plan.follows:
        is_plain = row.tokens and row.start >= 0 and not (row.parents or row.n_drafts)
        need(bool(is_plain), f"{row} is followed")
        end = ends.get(row.slot, -1)
        need(followed[row.slot] <= end, f"slot {row.slot} is followed beyond {end}")
    for row in plan.rows:
        is_whole = not row.n_drafts or followed.get(row.slot, ends[row.slot]) == ends[row.slot]
        need(is_whole, f"slot {row.slot} drafts behind {followed.get(row.slot)} of its tokens")


def _check_table(row: Row, blocks: tuple[int, ...], group: KVGroup, block_size: int) -> None:
    """Blocks are missing only where the row's window has left them. A state may go on in its block,
    but comes back to none."""
    end, unseen = row.end, first_block(row.start, group.window, block_size)
    n_gone = blocks[:unseen].count(NO_BLOCK)
    held: Sequence[int] = blocks[n_gone:]
    if group.state_bytes:
        held = [block for block, _ in groupby(held)]
    need(
        len(set(held)) == len(held) and all(0 <= block < group.n_blocks for block in held),
        f"{end} tokens in blocks {blocks} of {block_size}",
    )


def _check_owners(plan: StepPlan, block_size: int, tables: Mapping[int, tuple[int, ...]]) -> None:
    """A block of a group that one row writes belongs to no other row of the step."""
    writers: dict[int, int] = {}
    for row in plan.rows:
        for block in dict.fromkeys(tables[row.slot][row.start // block_size :]):
            need(block not in writers, f"two rows write block {block}")
            writers[block] = row.slot
    for row in plan.rows:
        for block in tables[row.slot]:
            need(writers.get(block, row.slot) == row.slot, f"block {block} has two owners")


def check_states(bundle: Bundle, sizes: EngineSizes) -> None:
    """Raises KvasirError unless there is one group for all states of the programs, of their size,
    or none where they have none. No program drafts beside states: its steps would change them."""
    n_bytes = sum(spec.state_bytes for spec in bundle.kv)
    found = [group.state_bytes for group in sizes.groups if group.state_bytes]
    if found != [n_bytes] * (n_bytes > 0):
        raise KvasirError(f"state groups of {found} bytes; the programs keep {n_bytes} a sequence")
    if n_bytes and bundle.draft is not None:
        raise KvasirError(f"a program drafts beside states of {n_bytes} bytes: leave it out")


def refuse_programs(bundle: Bundle) -> None:
    """Raises KvasirError on a program that no step runs."""
    drafts = map(draft_name, range(len(bundle.drafts)))
    others = bundle.programs.keys() - {TARGET, POOL, *drafts}
    if others:
        raise KvasirError(
            f"no executor runs a program beside a target as {', '.join(sorted(others))}"
        )


def need(is_kept: bool, what: str) -> None:
    """Raises KvasirError unless a promise is kept."""
    if not is_kept:
        raise KvasirError(f"invalid plan: {what}")
