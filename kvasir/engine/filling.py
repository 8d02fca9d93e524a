"""Masks that no thread beside the step has to bring: those that are known, and those that the
step's own threads make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvasir.core.plan import StepPlan
from kvasir.engine.looks import Followed, Path
from kvasir.exec.base import Fills, Handle
from kvasir.sampling.masks import Bits, NativeFill, allows
from kvasir.sched.request import Request

Wanted = Sequence[tuple[int, Path]]
"""Logit rows of one slot, and their paths."""


class StepMask(NamedTuple):
    """The mask of a logit row that its step makes."""

    row: int
    slot: int
    followed: Followed
    fill: NativeFill

    def booked(self) -> None:
        """It is made: what comes before is accepted."""
        one = self.followed
        one.masks.filled(one.key, self.fill.tokens)
        one.n_outputs, one.bits, one.chain = one.n_outputs + len(self.fill.tokens), None, ()


class Filling(NamedTuple):
    """What a step that runs was asked to make."""

    plan: StepPlan
    handle: Handle
    fills: Fills
    asked: Sequence[StepMask]
    seconds: float
    """After which nobody waits for one that is not begun."""


def bring_known(
    handle: Handle, wanted: Mapping[int, Wanted], followed: Mapping[int, Followed]
) -> dict[int, Wanted]:
    """What is wanted beside the masks behind the outputs so far that are known. These need no
    thread, which may never get its turn in time: an answer whose masks are always late goes on by
    a token when each has come."""
    left: dict[int, Wanted] = {}
    for slot, rows in wanted.items():
        one = followed[slot]
        bits, request = one.bits, one.request
        if bits is None or one.look is not None or one.n_outputs != request.n_outputs:
            left[slot] = rows
            continue
        for row in (row for row, path in rows if not path):
            handle.fill(row, bits)
        if deeper := [row for row in rows if row[1]]:
            left[slot] = deeper
        else:
            note_ends(request, {(): bits})
    return left


def asked_within(wanted: Mapping[int, Wanted], followed: Mapping[int, Followed]) -> list[StepMask]:
    """Of slots with one row behind new outputs. The others are for threads beside the step: to open
    an answer, paths, and what has been slow."""
    found = []
    for slot, rows in wanted.items():
        one = followed[slot]
        request = one.request
        if len(rows) > 1 or rows[0][1] or not _is_plain(one, request):
            continue
        new = request.tokens[request.n_prompt + one.n_outputs :]
        fill = one.masks.native(one.key, new) if new else None
        if fill is not None:
            found.append(StepMask(rows[0][0], slot, one, fill))
    return found


def note_ends(request: Request, made: Mapping[Path, Bits]) -> None:
    """Behind which paths its answer may end, as long as it is to go on."""
    if request.n_outputs >= request.params.min_tokens:
        return
    ids = request.params.stop_ids
    ends = [path for path, bits in made.items() if any(allows(bits, token) for token in ids)]
    request.masked.ends = request.n_outputs, frozenset(ends)


def _is_plain(one: Followed, request: Request) -> bool:
    """Its mask serves its row, and nothing else (``note_ends`` before ``min_tokens``)."""
    is_free = one.n_outputs >= 0 and one.look is None and not one.spent.is_slow
    return is_free and request.n_outputs >= request.params.min_tokens
