"""One request while the scheduler knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvasir.core.errors import KvasirError
from kvasir.core.params import TokenParams
from kvasir.core.plan import NOT_FINITE, Move, SlotOpen
from kvasir.core.request import Context, EngineRequest, Standing
from kvasir.kv.holders import Holder
from kvasir.kv.table import BlockTable
from kvasir.sched.tiles import NO_TILES, TilePlaces


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


@dataclass(slots=True, eq=False)
class Prefill:
    """How far its prompt is read."""

    n_scored: int = 0
    """Prompt tokens whose successor is scored once every plan made so far has run."""
    n_told: int = 0
    """Scores that the client was told."""
    n_cached: int = 0
    """Prompt tokens that the cache gave when it first ran."""


@dataclass(slots=True, eq=False)
class Drafting:
    """What drafts do to a request."""

    is_open: bool = False
    """A speculative row is in flight, so the next position is unknown."""
    moves: list[Move] = field(default_factory=list)
    """Entries of accepted branches that are not in their places yet."""
    following: tuple[int, tuple[int, ...], tuple[tuple[int, ...], ...]] = (0, (), ())
    """Known tokens, what the executor drafts to follow so many, and by rank the next best in their
    places, once these have ids."""
    n_hits: int = 0
    """Drafted tokens of its prediction that were drawn, and the client was not told of."""
    n_misses: int = 0
    """The same of those that were not drawn."""
    owed: float = 0.0
    """Seconds that drafts and towers took beside its tokens, and its tenant was not charged for."""
    undrafted: dict[str, int] = field(default_factory=dict)
    """By their reasons its decode steps without drafts."""


@dataclass(slots=True, eq=False)
class Masked:
    """What its masks said."""

    is_late: bool = False
    """One is: it is in no plan until that has come."""
    is_jumping: bool = False
    """It was told of forced tokens since it started."""
    forced: tuple[int, tuple[int, ...]] = (0, ())
    """A number of outputs, and what is forced to follow so many, where each has to be drawn
    nevertheless."""
    ends: tuple[int, frozenset[tuple[int, ...]]] = (0, frozenset())
    """A number of outputs, and tokens behind so many with which the outputs are a whole answer."""


@dataclass(slots=True, eq=False, kw_only=True)
class Request(Holder):
    """``n_computed`` chases ``n_known``; what a running step draws is known, but not named yet."""

    params: TokenParams
    """Those of ``asked``, until its reasoning is ended."""
    n_prompt: int
    max_outputs: int
    """Outputs after which it ends: its own limit or what the context leaves."""
    seniority: tuple[int, int, int]
    """Classes first, then priorities, then arrival: who of a tenant is behind gives blocks up for
    who is ahead. No two requests are equal."""
    turn: Turn
    tiles: TilePlaces = NO_TILES
    slot: int = -1
    """-1 while it waits."""
    n_drawn: int = 0
    """Outputs drawn once every plan made so far has run; committed ones are in ``tokens``."""
    draw: int = -1
    """Logit row, in the newest plan that drew for it, of the newest draw."""
    plain_until: int = 0
    """Tokens before which an output is a token and nothing else, unless it is a special one."""
    prefill: Prefill
    drafting: Drafting = field(default_factory=Drafting)
    masked: Masked = field(default_factory=Masked)
    finish: str | None = None
    error: KvasirError | None = None

    @property
    def arrival(self) -> int:
        return self.seniority[2]

    @property
    def standing(self) -> Standing:
        return self.asked.standing

    @property
    def context(self) -> Context:
        return self.asked.context

    @property
    def prediction(self) -> Sequence[int]:
        return self.asked.prediction

    @property
    def n_outputs(self) -> int:
        """Committed outputs."""
        return len(self.tokens) - self.n_prompt

    @property
    def n_known(self) -> int:
        return self.n_prompt + self.n_drawn

    @property
    def n_together(self) -> int:
        """Tokens that are computed in the step that computes the next one."""
        return self.tiles.n_together(self.n_computed)

    @property
    def drafted(self) -> tuple[int, ...]:
        """What the executor drafts to follow the known tokens: ids, or references where the newest
        of these is still being drawn."""
        n_known, tokens, _ = self.drafting.following
        return tokens if n_known == self.n_known else ()

    @property
    def siblings(self) -> tuple[tuple[int, ...], ...]:
        """By rank, the next best of ids in ``drafted``."""
        return self.drafting.following[2]

    @property
    def forced_next(self) -> tuple[int, ...]:
        """What must follow the known tokens, as far as that is to be drawn."""
        n_outputs, tokens = self.masked.forced
        return tokens[max(0, self.n_drawn - n_outputs) :] if tokens else ()

    @property
    def is_behind(self) -> bool:
        """Forced tokens are to be computed."""
        return self.masked.is_jumping and (self.n_left > 1 or len(self.forced_next) > 0)

    @property
    def is_streaming(self) -> bool:
        """It lacks its newest token alone, which may be in flight with drafts behind it."""
        return 0 < self.n_drawn < self.max_outputs and self.n_known - self.n_computed == 1

    @property
    def n_given(self) -> int:
        """Tokens that it may begin with: the logits, or the vector, of the last known one are
        wanted, those of every token whose successor is not scored yet, and to pool all of a prompt
        every token is computed."""
        if self.asked.pooling in ("cls", "mean"):
            return 0
        return self.prefill.n_scored if self.is_scoring else self.n_known - 1

    @property
    def n_left(self) -> int:
        """Tokens that can be computed now."""
        if self.drafting.is_open or self.masked.is_late:
            return 0
        if self.n_drawn < self.max_outputs:
            return self.n_known - self.n_computed
        return self.n_prompt - 1 - self.n_computed if self.is_scoring else 0

    def settled(self, n_tokens: int) -> int:
        """Those of the first ``n_tokens`` whose entries are in their places: not behind one that
        waits for a move."""
        moves = self.drafting.moves
        return min(n_tokens, moves[0].dst) if moves else n_tokens

    @property
    def is_scoring(self) -> bool:
        """Prompt tokens are left whose successors are wanted scored."""
        return self.params.n_prompt_logprobs >= 0 and self.prefill.n_scored < self.n_prompt - 1

    @property
    def has_scores(self) -> bool:
        """All prompt tokens are scored whose logprobs are wanted."""
        return self.prefill.n_told >= self.n_prompt - 1

    def named(self, start: int, stop: int) -> tuple[int, ...]:
        """Tokens [start, stop); the newest may still be in flight and is named by its logit row."""
        tokens = tuple(self.tokens[start:stop])
        return tokens if len(tokens) == stop - start else (*tokens, -1 - self.draw)

    def open(self, slot: int) -> SlotOpen:
        """Take ``slot``: the sampler's state there starts with every output so far."""
        self.slot = slot
        if not self.n_preempted:
            self.tokens = list(self.tokens)
            if self.vouched.chain is not None:
                self.vouched.chain.follow(self.tokens)
        asked, output = self.asked, tuple(self.tokens[self.n_prompt :])
        return SlotOpen(
            slot, self.params, asked.prompt, output, asked.pooling, asked.second, asked.media
        )

    def begin(self, n_cached: int) -> None:
        """Start with the KV entries of the first ``n_cached`` tokens."""
        self.n_computed = n_cached
        params = self.params
        if params.n_logprobs < 0 and not (params.needs_outputs or params.constraint):
            self.plain_until = self.n_prompt + self.max_outputs - 1
        if not self.n_preempted:
            self.prefill.n_cached = min(n_cached, self.n_prompt)

    def restart(self, now: float) -> None:
        """Wait again without the KV entries; what was drawn and scored stays."""
        self.n_computed = 0
        self.turn.restart(now)
        self.n_preempted += 1
        self.masked.is_jumping = self.masked.is_late = False
        self.drafting.moves.clear()

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
        n_outputs, paths = self.masked.ends
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
        if (x.n_prompt + x.n_drawn - x.n_computed == 1 or x.masked.is_jumping)
        and 0 < x.n_drawn < x.max_outputs
        and not (x.drafting.is_open or x.masked.is_late)
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
    asked: EngineRequest,
    arrival: int,
    max_outputs: int,
    table: BlockTable,
    *,
    prompt: list[int] | None = None,
    now: float = 0.0,
    sees_ahead: bool = False,
) -> Request:
    """State of a request that has not run here; ``emitted`` outputs count as its own. ``prompt``:
    its prompt in a list that others share and nobody changes. ``sees_ahead``: tokens of a tile see
    each other."""
    known = list(asked.prompt) if prompt is None else prompt
    standing, n_prompt = asked.standing, len(asked.prompt)
    return Request(
        id=asked.id,
        asked=asked,
        params=asked.params,
        tokens=[*known, *asked.emitted] if asked.emitted else known,
        n_prompt=n_prompt,
        max_outputs=max_outputs,
        table=table,
        seniority=(standing.rank, standing.priority, arrival),
        turn=Turn(now),
        tiles=TilePlaces(asked.media, sees_ahead) if asked.media else NO_TILES,
        n_drawn=len(asked.emitted),
        prefill=Prefill(n_prompt if asked.emitted else asked.n_scored, asked.n_scored),
    )
