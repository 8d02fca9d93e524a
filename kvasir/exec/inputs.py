"""A step plan written into arrays that a program reads, and the results read back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from kvasir.core.groups import NO_BLOCK
from kvasir.core.params import MAX_LOGPROB_IDS
from kvasir.core.plan import Row, RowOutput, StepPlan
from kvasir.core.sizes import EngineSizes
from kvasir.exec.drafting import Siblings
from kvasir.exec.rope_positions import RopePositions
from kvasir.exec.rows import depths, logit_rows
from kvasir.exec.successors import Successors
from kvasir.exec.tables import SlotTables
from kvasir.exec.taken import StateSlots
from kvasir.exec.token_types import TokenTypes
from kvasir.ir.bundle import MEDIA, ROPE_POSITIONS
from kvasir.ir.ops.places import AXES

MAX_TOP = MAX_LOGPROB_IDS
"""Tokens beside its own that a logit row can report."""
_RARE = frozenset(("ends", "types"))
MAX_PATH = 64
"""Drafted tokens before a logit row, on average over a step."""


class StepArrays:
    """Arrays of the planned maxima, allocated once and shared with what computes."""

    def __init__(
        self,
        sizes: EngineSizes,
        max_drafts: int = 0,
        inputs: Sequence[str] = (),
        *,
        has_head: bool = False,
    ) -> None:
        """``max_drafts``: behind a row; 0 where nobody drafts. ``inputs``: of the program, of which
        some are rare: where a token's row ends, its type, and where it stands on several axes.
        Ends of a model that sees are for ``MediaRows`` to write. ``has_head``: a head drafts."""
        t, s, max_blocks = sizes.max_num_batched_tokens, sizes.max_num_seqs, sizes.max_blocks
        i32 = np.int32
        self.arrays: dict[str, NDArray[np.generic]] = {
            **{name: np.zeros(t, i32) for name in ("tokens", "pos", "store", "seq", "parent")},
            **_logit_arrays(t),
            **result_arrays(t, sizes.n_candidates),
            "seq_begin": np.zeros(s + 1, i32),
            "seq_start": np.zeros(s, i32),
            "seq_tree": np.zeros(s, np.uint8),
            "tables": np.full((len(sizes.groups), s, max_blocks), NO_BLOCK, i32),
            "path": np.zeros(t * MAX_PATH, i32),
            "path_begin": np.zeros(t + 1, i32),
        }
        self.arrays |= {name: np.zeros(t, i32) for name in _RARE & set(inputs)}
        self._types = TokenTypes()
        self._rope_positions: RopePositions | None = None
        if ROPE_POSITIONS in inputs:
            self._rope_positions = RopePositions()
            self.arrays[ROPE_POSITIONS] = np.zeros((t, AXES), i32)
        ends = self.arrays.get("ends")
        self.ends = None if ends is None else ends.view(np.int32)
        """Behind the last position that a token sees, where some see what follows them."""
        self._has_row_ends = ends is not None and MEDIA not in inputs
        self._states = StateSlots(sizes)
        if most := self._states.most:
            names = ("state_at", "n_certain", "slots")
            self.arrays |= {name: np.zeros(s, i32) for name in names}
            self.arrays["taken"] = np.zeros((s, most), i32)
        self._max_drafts = max_drafts
        if max_drafts:
            self.arrays |= _draft_arrays(sizes, max_drafts)
        self._successors = Successors() if has_head else None
        self._written = [0] * s
        """Per sequence the version of its tables: unchanged ones are not written again."""
        self._views = {x: of.data for x, of in self.arrays.items() if of.ndim == 1}
        """A step of one row writes a number to each, which takes NumPy longer."""

    def _set(self, name: str, values: Sequence[int]) -> None:
        view = self._views[name]
        view[: len(values)] = array(view.format, values)

    def write(self, plan: StepPlan, tables: SlotTables) -> None:
        rows = plan.rows
        lengths = [len(row.tokens) for row in rows]
        begins = [0, *accumulate(lengths)]
        self._set("tokens", [token for row in rows for token in row.tokens])
        self._set("store", [row.start + j for row in rows for j in range(len(row.tokens))])
        self._set("pos", [row.start + depth for row in rows for depth in depths(row)])
        self._set("seq", [s for s, n in enumerate(lengths) for _ in range(n)])
        self._set(
            "parent",
            [p for row, begin in zip(rows, begins, strict=False) for p in _parents(row, begin)],
        )
        self._set("seq_begin", begins)
        self._set("seq_start", [row.start for row in rows])
        self._set("seq_tree", [bool(row.parents) for row in rows])
        if "types" in self.arrays:
            self._types.open(plan)
            self._set("types", self._types.of(rows))
        if self._rope_positions is not None:
            self._rope_positions.open(plan)
            self.arrays[ROPE_POSITIONS][: plan.n_tokens] = self._rope_positions.of(rows)
        if self._has_row_ends:
            self._set("ends", [row.end for row in rows for _ in row.tokens])
        if self._max_drafts:
            self._set("n_drafts", [row.n_drafts for row in rows])
            self._write_follows(plan)
        if self._successors is not None:
            self._successors.open(plan)
            self._set("successors", self._successors.of(rows))
        if self._states.most:
            self._write_states(plan)
        self._write_tables(rows, tables)
        self._write_logit_rows(rows, begins)

    def keep_inputs(self, n_columns: int) -> int:
        """Where states may be drafted over: ``n_columns`` numbers of each token, in each slot; of
        how many tokens."""
        if most := self._states.most:
            n_slots = len(self.arrays["slots"])
            self.arrays["kept_inputs"] = np.zeros((n_slots, most, n_columns), np.float32)
        return self._states.most

    def drew(self, plan: StepPlan, outputs: Sequence[RowOutput]) -> None:
        """The plan that was written has run."""
        self._states.drew(plan, outputs)

    def _write_states(self, plan: StepPlan) -> None:
        taken = self._states.begin(plan)
        self._set("state_at", [one.at for one in taken])
        self._set("n_certain", [one.n_certain for one in taken])
        self._set("slots", [row.slot for row in plan.rows])
        for s, one in enumerate(taken):
            self.arrays["taken"][s, : len(one.path)] = one.path

    def _write_follows(self, plan: StepPlan) -> None:
        """By the rows of their slots; -1 in front: the rows themselves."""
        if plan.follows is None:
            self._set("follow_begin", (-1,))
            return
        follows = {row.slot: row for row in plan.follows}
        found = [follows.get(row.slot) for row in plan.rows]
        tokens = [() if row is None else row.tokens for row in found]
        self._set("follow_begin", [0, *accumulate(map(len, tokens))])
        self._set("follow_start", [0 if row is None else row.start for row in found])
        self._set("follow_tokens", [token for own in tokens for token in own])

    def _write_tables(self, rows: Sequence[Row], tables: SlotTables) -> None:
        written, versions = self._written, tables.versions
        for s, row in enumerate(rows):
            if written[s] != versions[row.slot]:
                self.arrays["tables"][:, s] = tables.blocks[:, row.slot]
                written[s] = versions[row.slot]

    def _write_logit_rows(self, rows: Sequence[Row], begins: Sequence[int]) -> None:
        wanted = [
            (row, begin, item)
            for row, begin in zip(rows, begins, strict=False)
            for item in logit_rows(row)
        ]
        self._set("logit_token", [begin + item.token for _, begin, item in wanted])
        self._set("logit_slot", [row.slot for row, _, _ in wanted])
        self._set("logit_target", [item.target for _, _, item in wanted])
        self._set("sampled", [bool(item.drafted) for _, _, item in wanted])
        self._set("logit_out_index", [item.out_index for _, _, item in wanted])
        self._set("path_begin", [0, *accumulate(len(item.path) for _, _, item in wanted)])
        paths = [token for _, _, item in wanted for token in item.path]
        if len(paths) > self.arrays["path"].size:
            raise ValueError(
                f"drafts of {len(paths)} path tokens exceed {self.arrays['path'].size}"
            )
        self._set("path", paths)

    def read(self, n: int) -> tuple[RowOutput, ...]:
        """Outputs of the first ``n`` logit rows."""
        a, views = self.arrays, self._views
        columns = [
            views[name][:n].tolist() for name in ("drawn", "logprob", "rank", "hash", "top_count")
        ]
        outputs = []
        for row, (token, logprob, rank, digest, n_top) in enumerate(zip(*columns, strict=True)):
            top: tuple[tuple[int, float], ...] = ()
            if n_top:
                ids, values = (
                    a["top_ids"][row, :n_top].tolist(),
                    a["top_logprobs"][row, :n_top].tolist(),
                )
                top = tuple(zip(ids, values, strict=True))
            outputs.append(RowOutput(token, logprob, top, rank, digest))
        if "candidates" not in a:
            return tuple(outputs)
        found = a["candidates"][:n].tolist()
        return tuple(
            structs.replace(output, candidates=tuple([x for x in own if x >= 0]))
            for output, own in zip(outputs, found, strict=True)
        )

    def read_drafts(self, plan: StepPlan) -> tuple[tuple[tuple[int, ...], ...], Siblings]:
        """The drafts and siblings of a ``StepResult``."""
        asked = [row.n_drafts for row in plan.rows] if self._max_drafts else ()
        if not any(asked):
            return (), ()
        drafts = self.arrays["drafts"][: len(asked)].tolist()
        found = tuple(tuple(x[:n]) for x, n in zip(drafts, asked, strict=True))
        if not self.arrays["siblings"].size:
            return found, ()
        siblings = self.arrays["siblings"][: len(asked)].tolist()
        return found, tuple(
            tuple(tuple(rank[:n]) for rank in own) for own, n in zip(siblings, asked, strict=True)
        )


def _logit_arrays(n: int) -> dict[str, NDArray[np.generic]]:
    """What ``n`` logit rows are."""
    return {
        **{name: np.zeros(n, np.int32) for name in ("logit_token", "logit_slot", "logit_target")},
        "logit_out_index": np.zeros(n, np.int64),
        "sampled": np.zeros(n, np.uint8),
    }


def _draft_arrays(sizes: EngineSizes, max_drafts: int) -> dict[str, NDArray[np.generic]]:
    """What rows ask a draft program for, and what it gives."""
    s, t, i32 = sizes.max_num_seqs, sizes.max_num_batched_tokens, np.int32
    lengths = {"n_drafts": s, "follow_begin": s + 1, "follow_start": s, "follow_tokens": t}
    lengths["successors"] = s
    return {
        **{name: np.zeros(n, i32) for name, n in lengths.items()},
        "drafts": np.zeros((s, max_drafts), i32),
        "siblings": np.zeros((s, sizes.draft_width - 1, max_drafts), i32),
    }


def result_arrays(n: int, n_candidates: int = 0) -> dict[str, NDArray[np.generic]]:
    """What ``n`` logit rows give; ``n_candidates``: likeliest tokens of each."""
    likeliest = {"candidates": np.zeros((n, n_candidates), np.int32)} if n_candidates else {}
    return {
        **likeliest,
        **{name: np.zeros(n, np.int32) for name in ("drawn", "rank", "top_count")},
        "logprob": np.zeros(n, np.float32),
        "hash": np.zeros(n, np.uint64),
        "top_ids": np.zeros((n, MAX_TOP), np.int32),
        "top_logprobs": np.zeros((n, MAX_TOP), np.float32),
    }


def _parents(row: Row, begin: int) -> tuple[int, ...]:
    if not row.parents:
        return (-1,) * len(row.tokens)
    return tuple(begin + parent if parent >= 0 else -1 for parent in row.parents)
