"""What happened to a request, and in which steps: values small enough to keep many of them."""

from __future__ import annotations

import msgspec

ITS_TURN = "turn"
"""Detail of a preemption for a place that another was to have, and not for blocks."""


class StepRecord(msgspec.Struct, frozen=True, gc=False, tag="step"):
    """One step without its tokens. Requests are named by their engine ids."""

    step: int
    at: float
    """When the executor began, on the engine's monotonic clock, seconds."""
    seconds: float
    """Inside the executor."""
    decodes: tuple[int, ...] = ()
    """Requests that computed their newest token only."""
    chunks: tuple[tuple[int, int, int], ...] = ()
    """(request, first token, tokens) of prompts and of what is computed again."""
    drafts: tuple[tuple[int, int], ...] = ()
    """(request, tokens) of rows that verify drafted tokens."""
    forced: tuple[tuple[int, int], ...] = ()
    """(request, tokens) of rows of a token and what a constraint forced behind it."""
    n_waiting: int = 0
    """Requests that wait after the step."""
    blocks_free: int = 0
    """Free or cached blocks after the step, of the group of layers that has fewest."""
    towers: tuple[int, ...] = ()
    """Requests for which pieces of towers ran; without a token they have a chunk of none."""
    tower_seconds: float = 0.0
    """Of ``seconds``, that these took."""

    @property
    def n_tokens(self) -> int:
        """Tokens that the step computed."""
        prefill = sum(n for _, _, n in self.chunks)
        return len(self.decodes) + prefill + sum(n for _, n in (*self.drafts, *self.forced))

    @property
    def n_rows(self) -> int:
        return len(self.decodes) + len(self.chunks) + len(self.drafts) + len(self.forced)


class Mark(msgspec.Struct, frozen=True, gc=False, tag="mark"):
    """A turning point of request ``id``: "queued", "started" or a kind of ``Span``."""

    id: int
    at: float
    """On the engine's monotonic clock, seconds."""
    kind: str
    n_tokens: int = 0
    detail: str = ""


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a request's life. Times are seconds; ``at`` counts from its arrival.

    ``kind``: "compiled" (before that: its constraint was made, beside the steps of others),
    "queued" (waits for slot and blocks), "read" (the end of that wait: blocks were read from disk),
    "prefix_hit", "prefill" (one chunk), "decode"
    (consecutive steps of one token, of a draft, or of forced tokens), "preempted", "swapped_in"
    (from disk, after a preemption), "replayed" (by another engine), "undrafted" (decode steps
    without drafts, where there could be some, told at the end), "finished".
    """

    kind: str
    at: float
    seconds: float = 0.0
    tokens: int = 0
    """Of a read, a hit, a chunk, a swap; of a preemption those whose entries were given up; of a
    decode span those computed, drafted ones included."""
    start: int = 0
    """First token of a chunk."""
    forced: int = 0
    """Of a decode span: tokens that a constraint forced, and that had no step of their own."""
    step: int = -1
    """Number of the (first) step."""
    steps: int = 0
    rows: int = 0
    """Rows of the chunk's step, this one included."""
    slowest: float = 0.0
    """Longest time between the ends of two consecutive decode steps of the span."""
    detail: str = ""
    """Of "finished", "undrafted" and "preempted": why."""


class Holding(msgspec.Struct, frozen=True):
    """What a running choice has of the KV blocks of the layers that keep most."""

    id: int
    n_tokens: int
    """Tokens whose entries are computed."""
    n_blocks: int


class Story(msgspec.Struct, frozen=True):
    """The life of one choice, as far as it is remembered."""

    id: int
    arrived: float
    """On the engine's monotonic clock, seconds."""
    n_prompt: int
    state: str
    """"waiting", "running" or "finished"."""
    spans: tuple[Span, ...]
    is_truncated: bool = False
    """Early parts were forgotten, because the ring is bounded."""
