"""Beam search over the engine: every beam is a fork of the one that it grew from.

Nothing is drawn. A step asks the engine for the likeliest tokens after each beam and keeps the best
``beam_width`` continuations; ties go to the lower parent, then to the lower token. A beam that ends
is kept aside, and at the end all are ranked by cumulative log probability / length ^ penalty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import EngineRequest, TokenEvent
from kvasir.core.params import TokenParams
from kvasir.engine.engine import Engine

HOLD_SECONDS = 3600.0
"""Blocks of a beam are given back when its forks are decided, or when others need them."""
MAX_BEAM_WIDTH = 16
"""Twice as many alternatives are asked for, in case half of them end."""


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names, meanings and defaults of vLLM's ``BeamSearchParams``; ``temperature`` is not among
    them: it would not change a log probability there either."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0

    def check(self) -> None:
        """Raises RequestError on a value out of bounds."""
        if not 1 <= self.beam_width <= MAX_BEAM_WIDTH:
            raise RequestError(
                f"beam_width is {self.beam_width}: needs 1 to {MAX_BEAM_WIDTH}", param="beam_width"
            )
        if self.max_tokens < 1:
            raise RequestError(
                f"max_tokens is {self.max_tokens}: needs at least 1", param="max_tokens"
            )
        if not -10.0 <= self.length_penalty <= 10.0:
            raise RequestError(
                f"length_penalty is {self.length_penalty}: needs -10 to 10", param="length_penalty"
            )


@dataclass(frozen=True, slots=True)
class Beam:
    """``tokens`` after the prompt, with the token that ended it."""

    tokens: tuple[int, ...]
    cum_logprob: float
    parent: int = -1
    """Engine id of the request that computed all but its newest token."""
    is_ended: bool = False

    def score(self, length_penalty: float) -> float:
        """The token that ended a beam is no part of its length, as in vLLM."""
        length = max(1, len(self.tokens) - self.is_ended)
        return self.cum_logprob / float(length**length_penalty)


@dataclass(slots=True)
class Search:
    """The beams of one prompt."""

    prompt: tuple[int, ...]
    cache_salt: str = ""
    beams: list[Beam] = field(default_factory=lambda: [Beam((), 0.0)])
    ended: list[Beam] = field(default_factory=list)

    def best(self, params: BeamSearchParams) -> list[Beam]:
        """The best beams, ended or cut at ``max_tokens``."""
        ranked = sorted(
            [*self.ended, *self.beams], key=lambda beam: -beam.score(params.length_penalty)
        )
        return ranked[: params.beam_width]


class BeamSearch:
    """Advances all prompts together. For one use."""

    def __init__(
        self, engine: Engine, params: BeamSearchParams, eos_ids: Sequence[int], ids: Iterator[int]
    ) -> None:
        """``ids``: where the engine's ids of the requests come from."""
        self._engine = engine
        self._params = params
        self._eos = frozenset(() if params.ignore_eos else eos_ids)
        self._ids = ids
        self._held: list[int] = []

    def run(self, searches: Sequence[Search]) -> None:
        """Raises RequestError when a prompt can never run, KvasirError when a beam fails."""
        try:
            for _ in range(self._params.max_tokens):
                if not any(search.beams for search in searches):
                    break
                self._advance(searches)
        finally:
            self._release()

    def _advance(self, searches: Sequence[Search]) -> None:
        """One token for every beam."""
        owners: dict[int, tuple[Search, int]] = {}
        for search in searches:
            for index, beam in enumerate(search.beams):
                request = self._request(search, beam)
                self._engine.add(request)
                owners[request.id] = (search, index)
        news = self._collect(set(owners))
        self._release()
        self._held = list(owners)
        for search in searches:
            own = [(i, news[i]) for i, (owner, _) in owners.items() if owner is search]
            self._grow(search, own)

    def _request(self, search: Search, beam: Beam) -> EngineRequest:
        params = TokenParams(
            seed=0, max_tokens=1, temperature=0.0, n_logprobs=2 * self._params.beam_width
        )
        return EngineRequest(
            next(self._ids),
            (*search.prompt, *beam.tokens),
            params,
            cache_salt=search.cache_salt,
            parent=beam.parent,
            hold_seconds=HOLD_SECONDS,
        )

    def _collect(self, waiting: set[int]) -> dict[int, TokenEvent]:
        news: dict[int, TokenEvent] = {}
        while len(news) < len(waiting):
            if not self._engine.has_work:
                raise KvasirError(f"the engine forgot {len(waiting) - len(news)} beams")
            for event in self._engine.step().events:
                if event.id not in waiting:
                    continue
                if event.finish in ("error", "cancelled"):
                    raise KvasirError(event.error or "a beam was cancelled", code=event.error_code)
                news[event.id] = event
        return news

    def _grow(self, search: Search, news: Sequence[tuple[int, TokenEvent]]) -> None:
        grown = [
            (beam.cum_logprob + logprob, index, token, request_id)
            for index, (beam, (request_id, event)) in enumerate(
                zip(search.beams, news, strict=True)
            )
            for token, logprob in event.logprobs[0].top
        ]
        grown.sort(key=lambda item: (-item[0], item[1], item[2]))
        beams: list[Beam] = []
        for total, index, token, request_id in grown:
            tokens = (*search.beams[index].tokens, token)
            if token in self._eos:
                search.ended.append(Beam(tokens, total, is_ended=True))
            else:
                beams.append(Beam(tokens, total, request_id))
            if len(beams) == self._params.beam_width:
                break
        search.beams = beams

    def _release(self) -> None:
        for request_id in self._held:
            self._engine.release(request_id)
        self._held = []
