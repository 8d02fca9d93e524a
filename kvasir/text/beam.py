"""Beam search: every beam is a fork of the one that it grew from.

Nothing is drawn. The search is that of vLLM's ``LLM.beam_search``: a step asks the engine for the
2 * ``beam_width`` likeliest tokens after each beam; what ends by any of them is set aside, and of
the others the best ``beam_width`` go on. In the end all are ranked. The score of a beam is its
cumulative log probability / length ^ penalty; ties go to the lower parent, then to the likelier
token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.request import ALIKE, PLAIN, Context, EngineRequest, Standing
from kvasir.core.tiles import Media

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
    early_stopping: bool = False
    """Ends with the first ``beam_width`` beams that ended, instead of looking for better ones."""

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


class Beam(msgspec.Struct, frozen=True):
    """``tokens`` after the prompt, with the token that ended it."""

    tokens: tuple[int, ...]
    cum_logprob: float
    parent: int = -1
    """Engine id of the request that computed all but its newest token."""
    is_ended: bool = False


@dataclass(slots=True)
class Search:
    """The beams of one prompt. Whoever drives it runs ``requests`` and tells ``grow`` what came."""

    prompt: tuple[int, ...]
    params: BeamSearchParams
    eos_ids: Sequence[int]
    context: Context = PLAIN
    standing: Standing = ALIKE
    media: tuple[Media, ...] = ()
    """What tokens of the prompt stand for."""
    beams: list[Beam] = field(default_factory=lambda: [Beam((), 0.0)])
    ended: list[Beam] = field(default_factory=list)
    """The best ``beam_width`` of them."""

    @property
    def is_open(self) -> bool:
        """Some beam can still grow."""
        if self.params.early_stopping and len(self.ended) == self.params.beam_width:
            return False
        return bool(self.beams) and len(self.beams[0].tokens) < self.params.max_tokens

    def requests(self, ids: Iterator[int]) -> list[EngineRequest]:
        """One for each beam, which asks for its likeliest next tokens and holds its blocks."""
        n = 2 * self.params.beam_width
        params = TokenParams(seed=0, max_tokens=1, temperature=0.0, n_logprobs=n)
        return [
            EngineRequest(
                next(ids),
                (*self.prompt, *beam.tokens),
                params,
                self.context,
                self.standing,
                parent=beam.parent,
                hold_seconds=HOLD_SECONDS,
                media=self.media,
            )
            for beam in self.beams
        ]

    def grow(self, news: Sequence[TokenEvent]) -> None:
        """``news`` of the requests, in their order."""
        ends = () if self.params.ignore_eos else self.eos_ids
        grown: list[Beam] = []
        ended = list(self.ended)
        for beam, event in zip(self.beams, news, strict=True):
            for token, logprob in event.logprobs[0].top:
                tokens, total = (*beam.tokens, token), beam.cum_logprob + logprob
                if token in ends:
                    ended.append(Beam(tokens, total, is_ended=True))
                else:
                    grown.append(Beam(tokens, total, event.id))
        self.beams, self.ended = self._best(grown), self._best(ended)

    def best(self) -> list[Beam]:
        """The best beams, ended or cut at ``max_tokens``."""
        return self._best([*self.ended, *self.beams])

    def score(self, beam: Beam) -> float:
        """vLLM's ``get_beam_search_score``: the prompt is part of the length, an end token at the
        end is not, even where ``ignore_eos`` makes it a token like any other."""
        length = len(self.prompt) + len(beam.tokens) - (beam.tokens[-1] in self.eos_ids)
        return beam.cum_logprob / float(length**self.params.length_penalty)

    def _best(self, beams: Sequence[Beam]) -> list[Beam]:
        ranked = sorted(beams, key=self.score, reverse=True)
        return ranked[: self.params.beam_width]
