"""What is kept of an answer: its request as one value, and what the engine said so far."""

from __future__ import annotations

import math
import sqlite3

import msgspec
from msgspec import structs

from kvasir.core.errors import KvasirError
from kvasir.core.messages import Ready, TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.request import PriorityClass
from kvasir.serve.jobs import fingerprint
from kvasir.serve.resolved import Envelope, Resolved

OWN = ("seed", "max_tokens", "min_tokens")
"""Of a prompt's parameters: the others are those of the first (``validation.params.other_prompt``).
"""

ENDS = -1
"""Stands in the place of a line: the events there name choices whose reasoning is to end."""

_events = msgspec.msgpack.Decoder(tuple[TokenEvent, ...])


class ModelChanged(KvasirError):
    """What this engine computes is not what the one before had begun."""

    code = "model_changed"
    status = 409


class Kept(msgspec.Struct, frozen=True, gc=False):
    """With it an answer is computed again, to the same bytes: ``reopened`` takes it up."""

    resolved: Resolved
    envelope: Envelope
    key_root: str
    """Of the engine that it was resolved for."""

    def check(self, info: Ready) -> None:
        """Raises ModelChanged where the engine that is as ``info`` says answers otherwise."""
        if (self.key_root, self.resolved.fingerprint) != (info.key_root, fingerprint(info)):
            raise ModelChanged(
                f"it was begun by {self.resolved.fingerprint} with key root {self.key_root[:16]}, "
                f"now {fingerprint(info)} answers with {info.key_root[:16]}: ask for it again"
            )

    def encode(self) -> bytes:
        """Without pixels, which are many times the images that they are read of. What the prompts
        of a request have in common is there once."""
        return msgspec.msgpack.encode(structs.replace(self, resolved=_bare(self.resolved)))


def _bare(resolved: Resolved) -> Resolved:
    job = resolved.job
    media = tuple(structs.replace(x, pixels=b"") for x in job.media)
    others = tuple(
        TokenParams(**{name: getattr(x, name) for name in OWN}) for x in job.resolved[1:]
    )
    job = structs.replace(job, media=media, resolved=(*job.resolved[:1], *others))
    return structs.replace(resolved, job=job)


def decode(data: bytes) -> Kept:
    kept = msgspec.msgpack.decode(data, type=Kept)
    job = kept.resolved.job
    own = [{name: getattr(x, name) for name in OWN} for x in job.resolved[1:]]
    others = tuple(structs.replace(job.resolved[0], **each) for each in own)
    job = structs.replace(job, resolved=(*job.resolved[:1], *others))
    return structs.replace(kept, resolved=structs.replace(kept.resolved, job=job))


def later(resolved: Resolved, priority_class: PriorityClass) -> Resolved:
    """``resolved`` for who does not wait for it: of another class, and never due."""
    standing = structs.replace(
        resolved.job.standing, priority_class=priority_class, ttft_by=math.inf, answer_by=math.inf
    )
    return structs.replace(resolved, job=structs.replace(resolved.job, standing=standing))


def add_progress(
    db: sqlite3.Connection, entry_id: str, line: int, events: list[TokenEvent]
) -> None:
    """For an entry that may be gone."""
    db.execute(
        "INSERT INTO progress (entry, line, events) SELECT id, ?, ? FROM entries WHERE id = ?",
        (line, msgspec.msgpack.encode(events), entry_id),
    )


def progress(db: sqlite3.Connection, entry_id: str, line: int) -> list[TokenEvent]:
    rows = db.execute(
        "SELECT events FROM progress WHERE entry = ? AND line = ? ORDER BY seq", (entry_id, line)
    ).fetchall()
    return [event for row in rows for event in _events.decode(row[0])]


def drop_progress(db: sqlite3.Connection, entry_id: str, line: int) -> None:
    db.execute("DELETE FROM progress WHERE entry = ? AND line IN (?, ?)", (entry_id, line, ENDS))
