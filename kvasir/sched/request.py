"""One request while the scheduler knows it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvasir.core.errors import KvasirError
from kvasir.core.params import TokenParams
from kvasir.core.plan import NOT_FINITE, Move, SlotOpen
from kvasir.core.request import EngineRequest, PoolKind, Standing
from kvasir.kv.holders import Holder
from kvasir.kv.table import BlockTable


@dataclass(slots=True, eq=False)
class Turn:
    """What queues and policies remember of a request."""

    since: float = 0.0
    """When it began to wait, seconds of the scheduler's clock."""
    n_bypassed: int = 0
    """Requests that started in its turn, because it did not fit or had less cached."""
    n_left_out: int = 0
    """Plans in a row that computed nothing of its prompt, though it had started."""
    n_waits: int = 0
    """Plans that it waited for a block that another computes."""
    n_charged: int = 0
    """Computed tokens that its tenant was charged for."""
    tag: float = 0.0
    """Where it stands among the users of its tenant: tokens that each was served before it."""
    advance: float = 0.0
    """Seconds that its tenant has paid for beyond them."""

    def restart(self, now: float) -> None:
        """It waits again, and will be computed again."""
        self.since = now
        self.n_charged = self.n_left_out = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Request(Holder):
    """``n_computed`` chases ``n_known``; what a running step draws is known, but not named yet."""

    arrival: int
    params: TokenParams
    n_prompt: int
    max_outputs: int
    """Outputs after which it ends: its own limit or what the context leaves."""
    standing: Standing
    turn: Turn
    pooling: PoolKind | None = None
    """What it gives is a vector, which counts as the one output that it may draw."""
    second: int = 0
    """As in ``EngineRequest``."""
    is_counting: bool = False
    """Its draws depend on what was emitted: the sampler is told."""
    n_drawn: int = 0
    """Outputs drawn once every plan made so far has run; committed ones are in ``tokens``."""
    draw: int = -1
    """Logit row, in the newest plan that drew for it, of the newest draw."""
    n_scored: int = 0
    """Prompt tokens whose successor is scored once every plan made so far has run."""
    n_told: int = 0
    """Scores that the client was told."""
    n_cached: int = 0
    """Prompt tokens that the cache gave when it first ran."""
    prediction: tuple[int, ...] = ()
    """As in ``EngineRequest``."""
    prediction_hits: int = 0
    """Drafted tokens of it that were drawn, and the client was not told of."""
    prediction_misses: int = 0
    """The same of those that were not drawn."""
    slot: int = -1
    """-1 while it waits."""
    is_drafting: bool = False
    """A speculative row is in flight, so the next position is unknown."""
    has_spans: bool = False
    """Tokens of a tile see each other: they are computed in one step."""
    is_late: bool = False
    """Its mask is: it is in no plan until that has come."""
    is_jumping: bool = False
    """It was told of forced tokens since it started."""
    forced: tuple[int, tuple[int, ...]] = (0, ())
    """A number of outputs, and what its constraint forces to follow so many, where each has to be
    drawn nevertheless."""
    plain_until: int = 0
    """Tokens before which an output is a token and nothing else, unless it is a special one."""
    moves: list[Move] = field(default_factory=list)
    executor_draft: tuple[int, tuple[int, ...]] = (0, ())
    """Known tokens, and what the executor drafts to follow so many."""
    ends: tuple[int, frozenset[tuple[int, ...]]] = (0, frozenset())
    """A number of outputs, and tokens behind so many with which its constraint takes the outputs as
    a whole answer."""
    finish: str | None = None
    error: KvasirError | None = None
    seniority: tuple[int, int, int] = field(init=False)
    """Classes first, then priorities, then arrival: who of a tenant is behind gives blocks up for
    who is ahead. No two requests are equal."""

    def __post_init__(self) -> None:
        self.rank = self.standing.rank
        self.seniority = self.rank, self.standing.priority, self.arrival

    @property
    def n_outputs(self) -> int:
        """Committed outputs."""
        return len(self.tokens) - self.n_prompt

    @property
    def n_known(self) -> int:
        return self.n_prompt + self.n_drawn

    @property
    def tile_room(self) -> int:
        """Tokens that come next, as far as those of one tile."""
        ends = (media.end for media in self.media if media.end > self.n_computed)
        return next(ends, sys.maxsize) - self.n_computed

    def is_before_media_end(self, place: int) -> bool:
        """Whether tokens at or behind ``place`` may stand for a tile: those that decode look at no
        tile, of which there may be a hundred."""
        return len(self.media) > 0 and place < self.media[-1].end

    @property
    def n_together(self) -> int:
        """Tokens that are computed in the step that computes the next one."""
        if not (self.has_spans and self.is_before_media_end(self.n_computed)):
            return 1
        spans = (x for x in self.media if x.start <= self.n_computed < x.end)
        return next((x.end - self.n_computed for x in spans), 1)

    def whole(self, n_tokens: int) -> int:
        """As many of the next ``n_tokens`` as end with a span, or outside of any."""
        if not self.has_spans:
            return n_tokens
        end = self.n_computed + n_tokens
        starts = (x.start for x in self.media if x.start < end < x.end)
        return max(0, next(starts, end) - self.n_computed)

    @property
    def drafted(self) -> tuple[int, ...]:
        """What the executor drafts to follow the known tokens: ids, or references where the newest
        of these is still being drawn."""
        n_known, tokens = self.executor_draft
        return tokens if n_known == self.n_known else ()

    @property
    def forced_next(self) -> tuple[int, ...]:
        """What must follow the known tokens, as far as that is to be drawn."""
        n_outputs, tokens = self.forced
        return tokens[max(0, self.n_drawn - n_outputs) :] if tokens else ()

    @property
    def is_behind(self) -> bool:
        """Forced tokens are to be computed."""
        return self.is_jumping and (self.n_left > 1 or len(self.forced_next) > 0)

    @property
    def n_given(self) -> int:
        """Tokens that it may begin with: the logits, or the vector, of the last known one are
        wanted, those of every token whose successor is not scored yet, and to pool all of a prompt
        every token is computed."""
        if self.pooling in ("cls", "mean"):
            return 0
        return self.n_scored if self.is_scoring else self.n_known - 1

    @property
    def n_left(self) -> int:
        """Tokens that can be computed now."""
        if self.is_drafting or self.is_late:
            return 0
        if self.n_drawn < self.max_outputs:
            return self.n_known - self.n_computed
        return self.n_prompt - 1 - self.n_computed if self.is_scoring else 0

    @property
    def n_whole(self) -> int:
        """Tokens whose entries are in their places when it ends now: those that wait for a move
        will not be moved any more."""
        n = min(self.n_computed, len(self.tokens) - 1)
        return min(n, self.moves[0].dst) if self.moves else n

    @property
    def is_scoring(self) -> bool:
        """Prompt tokens are left whose successors are wanted scored."""
        return self.params.n_prompt_logprobs >= 0 and self.n_scored < self.n_prompt - 1

    @property
    def has_scores(self) -> bool:
        """All prompt tokens are scored whose logprobs are wanted."""
        return self.n_told >= self.n_prompt - 1

    def named(self, start: int, stop: int) -> tuple[int, ...]:
        """Tokens [start, stop); the newest may still be in flight and is named by its logit row."""
        tokens = tuple(self.tokens[start:stop])
        return tokens if len(tokens) == stop - start else (*tokens, -1 - self.draw)

    def open(self, slot: int) -> SlotOpen:
        """Take ``slot``: the sampler's state there starts with every output so far."""
        n = self.n_prompt
        self.slot = slot
        if not self.epoch:
            self.tokens = list(self.tokens)
            if self.chain is not None:
                self.chain.follow(self.tokens)
        prompt, output = tuple(self.tokens[:n]), tuple(self.tokens[n:])
        return SlotOpen(slot, self.params, prompt, output, self.pooling, self.second, self.media)

    def begin(self, n_cached: int) -> None:
        """Start with the KV entries of the first ``n_cached`` tokens."""
        self.n_computed = n_cached
        if self.params.n_logprobs < 0 and not (self.is_counting or self.params.constraint):
            self.plain_until = self.n_prompt + self.max_outputs - 1
        if not self.epoch:
            self.n_cached = min(n_cached, self.n_prompt)

    def restart(self, now: float) -> None:
        """Wait again without the KV entries; what was drawn and scored stays."""
        self.n_computed = 0
        self.turn.restart(now)
        self.epoch += 1
        self.is_jumping = self.is_late = False
        self.moves.clear()

    def emit(self, token: int) -> None:
        """Append a drawn token; sets ``finish`` when it is the last."""
        tokens = self.tokens
        tokens.append(token)
        if token in self.params.stop_ids or len(tokens) - self.n_prompt >= self.max_outputs:
            self.finish = self.ending()

    def fail(self, token: int) -> None:
        """End with the error that a negative ``token`` stands for: NOT_FINITE or NOTHING_LEFT.
        What keeps to a constraint may have been at its end, before ``min_tokens``."""
        if token != NOT_FINITE and self._may_end() and self.n_outputs < self.params.min_tokens:
            self.finish = "stop"
            return
        self.finish = "error"
        if token == NOT_FINITE:
            code = "model_numerics"
            why = "the model's logits are not finite; --dtype float32 may help"
        else:
            code = "no_token_left"
            why = "every token is banned; relax logit_bias, min_tokens or the constraint"
        self.error = KvasirError(f"token {len(self.tokens)} cannot be drawn: {why}", code=code)

    def _may_end(self) -> bool:
        n_outputs, paths = self.ends
        return tuple(self.tokens[self.n_prompt + n_outputs :]) in paths

    def ending(self) -> str | None:
        """Why the request ends with the outputs it has; None when it goes on."""
        n, params = len(self.tokens) - self.n_prompt, self.params
        if n > params.min_tokens and self.tokens[-1] in params.stop_ids:
            return "stop"
        if n < self.max_outputs:
            return None
        wants_scores = self.params.n_prompt_logprobs >= 0 and not n
        return None if wants_scores and not self.has_scores else "length"


def by_phase(running: Sequence[Request]) -> tuple[list[Request], list[Request]]:
    """Those that lack their newest token alone (what their properties say, sooner), or compute what
    was forced, and the others."""
    ready = [
        x
        for x in running
        if (x.n_prompt + x.n_drawn - x.n_computed == 1 or x.is_jumping)
        and 0 < x.n_drawn < x.max_outputs
        and not (x.is_drafting or x.is_late)
    ]
    if len(ready) == len(running):
        return ready, []
    chosen = set(ready)
    return ready, [request for request in running if request not in chosen]


class PromptLists:
    """The choices of a prompt, which come one after the other with the same object, share a list
    until they start: waiting choices cost no memory for their prompts."""

    def __init__(self) -> None:
        self._newest: tuple[tuple[int, ...], list[int]] = ((), [])

    def of(self, prompt: tuple[int, ...]) -> list[int]:
        """The tokens of ``prompt``, to be copied before they are changed."""
        if self._newest[0] is not prompt:
            self._newest = prompt, list(prompt)
        return self._newest[1]


def new_request(
    request: EngineRequest,
    arrival: int,
    max_outputs: int,
    table: BlockTable,
    *,
    prompt: list[int] | None = None,
    now: float = 0.0,
) -> Request:
    """State of a request that has not run here; ``emitted`` outputs count as its own. ``prompt``:
    its prompt in a list that others share and nobody changes."""
    known = list(request.prompt) if prompt is None else prompt
    n_prompt, n_emitted = len(request.prompt), len(request.emitted)
    return Request(
        id=request.id,
        arrival=arrival,
        params=request.params,
        tokens=[*known, *request.emitted] if request.emitted else known,
        n_prompt=n_prompt,
        max_outputs=max_outputs,
        table=table,
        standing=request.standing,
        context=request.context,
        parent=request.parent,
        hold_seconds=request.hold_seconds,
        turn=Turn(now),
        pooling=request.pooling,
        second=request.second,
        media=request.media,
        prediction=request.prediction,
        is_counting=request.params.needs_outputs,
        n_drawn=n_emitted,
        n_scored=n_prompt if n_emitted else request.n_scored,
        n_told=request.n_scored,
    )
