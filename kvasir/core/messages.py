"""What an engine tells: tagged msgspec structs, token ids only."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.core.vectors import NO_VECTORS, VectorFacts


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    token: int
    logprob: float
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()


class TokenEvent(msgspec.Struct, frozen=True, gc=False, tag="token", omit_defaults=True):
    """News of one choice after one step.

    ``finish`` is None while it runs, else "stop", "length", "cancelled" or "error".
    A stop token is part of ``tokens``; ``stop_id`` names it so that the API can leave it out of
    the text.
    """

    id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of the next prompt tokens (the first of all has none), sent as they are computed."""
    finish: str | None = None
    stop_id: int | None = None
    error: str | None = None
    """Message of a failed request; ``error_code`` is its machine-readable word, e.g.
    "model_numerics"."""
    error_code: str | None = None
    logits_hashes: tuple[int, ...] = ()
    """Per token the hash of its raw logits, when the executor records hashes (tests)."""
    n_cached: int = 0
    """Prompt tokens that the prefix cache gave; sent once, with the first token."""
    closes_at: int | None = None
    """Alone in an event: after so many outputs the choice's reasoning ends, as it was asked to."""
    retry_after: float = 0.0
    """With an error: seconds after which trying again is worthwhile; 0: it never is."""
    scores: bytes = b""
    """Between processes, instead of ``prompt_logprobs``: some of them as msgpack, those of a long
    prompt in several events, so that who words them reads a few at a time."""
    n_scores: int = 0
    """How many these are."""
    prediction_hits: int = 0
    """Tokens that the client predicted, and that were drafted and drawn."""
    prediction_misses: int = 0
    """The same of those that were drafted and not drawn."""
    vector: bytes = b""
    """Of a request that pools, with its last event: f32 [hidden size], little-endian."""

    @classmethod
    def failed(cls, request_id: int, error: KvasirError) -> TokenEvent:
        return cls(request_id, finish="error", error=error.message, error_code=error.code)


class DiskStats(msgspec.Struct, tag="disk"):
    """Of the disk tier of the KV cache; counters grow for its life."""

    n_stored: int = 0
    """Blocks written."""
    n_loaded: int = 0
    """Blocks read for a request."""
    n_dropped: int = 0
    """Blocks that came faster than they could be written, or could not be written."""
    n_damaged: int = 0
    """Blocks that were not read as they were written."""
    n_bytes: int = 0
    """Of all files."""
    n_hit: int = 0
    """Tokens of prefix hits that came from disk."""


class DrafterStats(msgspec.Struct, frozen=True):
    """Of one drafter; counters grow for the life of the engine."""

    method: str
    n_drafts: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    """As those of ``EngineStats``."""

    def plus(self, n_drafts: int, n_drafted: int, n_accepted: int) -> DrafterStats:
        counts = self.n_drafts + n_drafts, self.n_drafted + n_drafted, self.n_accepted + n_accepted
        return DrafterStats(self.method, *counts)


class EngineStats(msgspec.Struct, tag="stats"):
    """After a step; counters grow for the life of the engine. The scheduler counts in one of its
    own, of which it tells copies."""

    step: int = 0
    n_running: int = 0
    n_waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    """Blocks without owner whose contents are kept: free + used + cached is the total."""
    n_preemptions: int = 0
    n_cancelled: int = 0
    n_failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    step_seconds: float = 0.0
    """Of all steps so far."""
    prefix_queries: int = 0
    """Tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Tokens of them that it gave."""
    disk: DiskStats | None = None
    """None without a disk tier."""
    n_received: int = 0
    """Choices, refused ones included."""
    tokens_received: int = 0
    """Prompt tokens of these."""
    tokens_waiting: int = 0
    """Prompt tokens of requests that have not started."""
    first_wait: float = 0.0
    """Seconds until a waiting request is expected to start."""
    last_wait: float = 0.0
    """Seconds until one that came now would."""
    n_unreachable: int = 0
    """Requests refused because they could not meet their deadline."""
    n_expired: int = 0
    """Requests whose deadline passed."""
    n_masks: int = 0
    """Made for rows that draw under a constraint."""
    mask_seconds: float = 0.0
    """That these took."""
    n_forced: int = 0
    """Outputs that a constraint left no choice for, and that had no step of their own."""
    n_drafts: int = 0
    """Rows with tokens that somebody proposed."""
    n_drafted: int = 0
    """These tokens."""
    n_accepted: int = 0
    """Those of them that the target drew itself."""
    draft_seconds: float = 0.0
    """That a draft program took."""
    seconds_won: float = 0.0
    """By drafts, beside steps of one token for each request: an estimate; below 0: lost."""
    drafters: tuple[DrafterStats, ...] = ()
    """In the order of their methods in ``Ready.drafter``."""

    def verified(self, drafter: int, n_drafted: int, n_accepted: int) -> None:
        """A draft, of one of several drafters."""
        self.n_drafts += 1
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted
        counts = 1, n_drafted, n_accepted
        each = [x.plus(*counts) if i == drafter else x for i, x in enumerate(self.drafters)]
        self.drafters = tuple(each)


class StepEvents(msgspec.Struct, frozen=True, tag="events"):
    """The news of a step for all streams; of a step with very many of them a part."""

    events: tuple[TokenEvent, ...]
    stats: EngineStats


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is loaded; sizes that the API process validates against."""

    model: str
    vocab_size: int
    max_model_len: int
    n_blocks: int
    block_size: int
    numerics_id: str
    key_root: str
    max_num_seqs: int
    """Choices that are computed at a time."""
    reasons: dict[str, str] = {}
    """Resolved settings and why each has its value, for the start-up report."""
    warnings: tuple[str, ...] = ()
    """What was done as asked and may be regretted."""
    drafter: str = ""
    """The methods by which tokens are drafted, "+" between them; empty: nobody drafts."""
    follows_drafts: bool = False
    """Sampled answers depend on what is drafted, hence on timing."""
    vectors: VectorFacts = NO_VECTORS
