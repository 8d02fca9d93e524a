"""A step as a value: what the scheduler decides, and what an executor answers."""

from __future__ import annotations

import msgspec

from kvasir.core.params import TokenParams
from kvasir.core.request import PoolKind
from kvasir.core.tiles import Media

MAX_LOGIT_ROWS = 1 << 20
"""Of one step."""
MAX_DRAFTS = 16
"""Tokens that an executor drafts behind a row, one after the other."""


def reference(row: int, draft: int = 0) -> int:
    """The negative token that stands for what logit row ``row`` of the previous plan draws, or for
    the ``draft``-th token, counted from 1, that the executor drafts to follow it."""
    return -1 - row - draft * MAX_LOGIT_ROWS


def sibling(drafted: int, rank: int) -> int:
    """The reference to the next best token of ``rank`` >= 1 in the place of the one that the
    reference ``drafted`` stands for."""
    return drafted - rank * MAX_DRAFTS * MAX_LOGIT_ROWS


def referred(token: int) -> tuple[int, int]:
    """(row, draft) of a reference; of a sibling its rank times ``MAX_DRAFTS`` more."""
    draft, row = divmod(-1 - token, MAX_LOGIT_ROWS)
    return row, draft


class SlotOpen(msgspec.Struct, frozen=True):
    """Gives ``slot`` to a request: the sampler's state before its next token. Its first row may
    come with a later plan.

    ``prompt`` and ``output`` are what its draws depend on; they differ after a preemption or a
    replay.
    """

    slot: int
    params: TokenParams
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    pooling: PoolKind | None = None
    """Rows of the slot are pooled; the one with the last token of ``prompt`` gives a vector."""
    second: int = 0
    """Tokens of ``prompt`` from here on are of the second kind; 0: none."""
    media: tuple[Media, ...] = ()
    """What tokens of ``prompt`` stand for, in their order."""


class TableChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From its block ``first`` on, the block table of ``slot`` in KV group ``group`` has
    ``blocks``; NO_BLOCK where no token to come sees an entry of the block."""

    slot: int
    group: int
    first: int
    blocks: tuple[int, ...]


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Copy one KV entry of ``slot`` from storage index ``src`` to ``dst`` before the step
    (accepted tree branch), in the layers of the target: a draft program takes in of a tree what was
    accepted, at its place, and nothing else."""

    slot: int
    src: int
    dst: int


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """Copy the first ``n_entries`` KV entries of block ``src`` to block ``dst`` before the step, in
    every group.

    What ``dst`` holds after them is unspecified.
    """

    src: tuple[int, ...]
    """Per group a block."""
    dst: tuple[int, ...]
    n_entries: int


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of one block of a KV group to or from where they are kept under a name."""

    name: bytes
    group: int
    block: int


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive tokens of one request in one step; prefill, decode and speculation are all rows.

    Token ``j`` is written to KV storage index ``start + j``. In a chain its logical position is
    the same; with ``parents`` it is ``start + depth(j)`` and it attends to everything before
    ``start`` and to its ancestors. The last ``n_logits`` tokens yield one logit row each, in order.

    Made by the hundred in each step: a struct takes a tenth of a frozen dataclass's time, and holds
    nothing that the garbage collector must look at.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    """Ids. A negative one is a ``reference``: -1-r stands for what logit row r of the previous plan
    draws (overlapped loop)."""
    n_logits: int = 1
    out_index: int = 0
    """Output index (Philox counter) drawn by the first logit row; a deeper row adds its depth
    below that token."""
    parents: tuple[int, ...] = ()
    """Empty: a chain. Else per token the index in ``tokens`` of its parent, -1 for the first."""
    targets: tuple[int, ...] = ()
    """Empty: sample. Else per logit row the token whose logprob is wanted instead of a draw; -1
    samples."""
    n_drafts: int = 0
    """Tokens that the executor drafts to follow what the row draws: after the drafts of its own
    that the target draws too, where it has a logit row each; else after its only logit row. Their
    entries lie at the positions from there on."""
    n_sampled: int = 0
    """Of the drafts of a chain, how many of the first were drawn from distributions that the
    executor keeps (``EngineSizes.kept_drafts``)."""

    @property
    def end(self) -> int:
        """Behind the last storage index that the row may write."""
        return self.start + len(self.tokens) + self.n_drafts


class TowerRun(msgspec.Struct, frozen=True, array_like=True):
    """Of a tile that tokens of ``slot`` stand for, the first ``end`` pieces of its tower are done
    behind the run (``ir.pieces``); its rows are there behind the last."""

    slot: int
    digest: bytes
    end: int


class StepPlan(msgspec.Struct, frozen=True, tag="step_plan"):
    """Everything an executor needs for one step; holds no tensors, compares by value.

    ``tables`` are what changed in the block tables of slots since the plan before; a slot that is
    opened begins with empty ones, and those of a row's slot cover its tokens. They change before
    anything else is done. Then KV entries are touched in one order: ``saves``, ``loads``,
    ``moves``, ``copies``, ``rows``; each of them in the order of the plan, rows all at a time. So a
    copy may read what a load of the same plan brings, and nobody may read what an earlier part
    overwrote (``exec.checker``). While a plan is made, no block that it names gets another owner;
    what copies read is held until the plan is committed. Plans run in their order, so a later one
    may write what an earlier one read.
    """

    step: int
    rows: tuple[Row, ...]
    opens: tuple[SlotOpen, ...] = ()
    tables: tuple[TableChange, ...] = ()
    commits: tuple[tuple[int, int], ...] = ()
    """(slot, token) pairs emitted since the previous plan by requests whose draws depend on them;
    applied before the step."""
    moves: tuple[Move, ...] = ()
    copies: tuple[Copy, ...] = ()
    saves: tuple[Transfer, ...] = ()
    """Blocks whose contents are kept under a name, before they are another's."""
    loads: tuple[Transfer, ...] = ()
    towers: tuple[TowerRun, ...] = ()
    """Before any row, one after the other; what is begun and not finished is lost when another tile
    is begun. A plan may have no rows beside them. Where a row needs what no run has finished, the
    executor goes on to its end."""
    forgets: bool = False
    """Before the towers, all rows that they have made."""
    follows: tuple[Row, ...] | None = None
    """What the draft program takes in behind the rows, before it drafts: of a slot that has a row
    any tokens up to the end of that one, where nothing is drawn; of a row that asks for drafts all
    that its entries lack. Of a tree the first token is the last that is taken in, and what the
    target drew of it comes behind where drafts are asked for. None: the tokens of the rows
    themselves, of a tree those that the target drew. Empty: nothing; a head knows these two
    alone."""

    @property
    def n_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)

    @property
    def n_logits(self) -> int:
        return sum(row.n_logits for row in self.rows)


NOT_FINITE, NOTHING_LEFT, NOT_DRAWN = -1, -2, -3
"""Instead of a token: the raw logits are no distribution; every token is banned; a mask was late,
and the next row of the request draws."""


class RowOutput(msgspec.Struct, frozen=True, gc=False):
    """What one logit row gave.

    ``token`` may be one of the three above.
    """

    token: int
    logprob: float = 0.0
    """Natural-log probability of ``token`` under the unmodified distribution (before penalties and
    filters)."""
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob) of the likeliest tokens, likeliest first; ties to the lowest id."""
    rank: int = 0
    """1-based rank of ``token`` under the unmodified distribution; 0 when no logprobs were asked
    for."""
    logits_hash: int = 0
    """64-bit hash of the row's raw logits when the executor records hashes, else 0."""
    candidates: tuple[int, ...] = ()
    """The likeliest tokens under the unmodified distribution, likeliest first, ties to the lowest
    id: ``EngineSizes.n_candidates`` where there are as many; none of what is no distribution."""


class StepResult(msgspec.Struct, frozen=True):
    """Outputs in the order of the plan's logit rows."""

    outputs: tuple[RowOutput, ...]
    seconds: float = 0.0
    """Wall time inside the executor."""
    began: float = 0.0
    """When the executor began, seconds of ``time.monotonic``; 0 when it does not tell."""
    drafts: tuple[tuple[int, ...], ...] = ()
    """Per row of the plan its ``n_drafts`` tokens; -1 from where nothing could be drawn. Empty when
    no row asked for any."""
    vectors: tuple[bytes, ...] = ()
    """By the rows that end a pooled prompt, in their order: f32 [hidden size], little-endian; empty
    where it is not finite."""
    draft_seconds: float = 0.0
    """Of ``seconds``, what the draft program took."""
    tower_seconds: float = 0.0
    """Of ``seconds``, what towers of images took: no token of a step is dearer for it."""
    siblings: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Per row of the plan, and rank, the next best tokens in the places of its ``drafts``; -1 where
    there is none. Empty where one is drafted in each place (``EngineSizes.draft_width``)."""
