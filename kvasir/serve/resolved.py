"""The one value that every dialect becomes: what to generate, resolved to ids and numbers, and what
the answer shall show. Equal values give equal answers, whenever and wherever they are computed."""

from __future__ import annotations

from math import inf
from typing import Any, Literal

import msgspec

from kvasir.core.params import TokenParams
from kvasir.core.request import ALIKE, PLAIN, Context, PoolKind, Standing
from kvasir.core.tiles import Media
from kvasir.serve.streams import SILENCE_SECONDS
from kvasir.serve.wanted import bytes_beside
from kvasir.toolcalls.reading import Reading
from kvasir.validation.sampling import SamplingParams

Json = dict[str, Any]
Ids = tuple[int, ...]


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to generate: ``params.n`` choices for each prompt, choice by choice within a prompt."""

    prompts: tuple[Ids, ...]
    params: SamplingParams
    resolved: tuple[TokenParams, ...]
    """Of the first choice of each prompt; those of the others follow from it."""
    context: Context = PLAIN
    standing: Standing = ALIKE
    """Its time limits are those of the machine's clock: who computes a stored job again gives it
    another standing."""
    length_penalty: float | None = None
    """Of a beam search; None draws."""
    pooling: PoolKind | None = None
    """Vectors of the prompts are wanted: nothing is generated."""
    head: Ids | Literal["classifier"] = ()
    """What makes logits of them: rows of the language head, by their tokens, or the model's own
    head for labels."""
    seconds: Ids = ()
    """Where in each prompt its second text begins, of a model that tells their tokens apart."""
    early_stopping: bool = False
    """Of a beam search."""
    reading: Reading | None = None
    """How reasoning and calls are told from content; None: all is text."""
    scores_from: int = 0
    """The first token of each prompt whose log probability is wanted, where any is."""
    n_best: int = 0
    """Choices of each prompt that are the answer, those of largest log probability; 0: all."""
    media: tuple[Media, ...] = ()
    """What tokens of the one prompt stand for."""
    n_told_at_once: int = 0
    """Choices of a kept answer that are told in turns, others when these have ended; 0: all."""
    prediction: Ids = ()
    """As in ``EngineRequest``."""

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.params.n

    @property
    def n_scored(self) -> int:
        """Of each prompt, log probabilities that nobody waits for; the first token has none."""
        return max(0, self.scores_from - 1)

    @property
    def n_prompt_tokens(self) -> int:
        """Each prompt counted once, as it is computed once for all its choices."""
        return sum(map(len, self.prompts))

    @property
    def n_bytes(self) -> int:
        """Of pixels, of the prediction, and of the constraint that all choices share."""
        constraint = self.resolved[0].constraint if self.resolved else ""
        return bytes_beside(self.media, constraint, self.prediction)

    def n_prompt_of(self, choice: int) -> int:
        """Tokens of its prompt."""
        return len(self.prompts[choice // self.params.n])

    def is_first(self, choice: int) -> bool:
        """Of its prompt: what the prompt cost is what its first choice cost."""
        return choice % self.params.n == 0


class Echo(msgspec.Struct, frozen=True):
    """A prompt as it is given back."""

    text: str
    begins: tuple[int, ...]
    """Where in ``text`` (characters) each token begins; empty unless logprobs are asked for."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request of any dialect, after every check. As JSON or MessagePack it is what is stored of
    an answer: ``AnswerRun`` computes the rest."""

    dialect: str
    """Whose grammar words the answer: a key of ``dialects.table.DIALECTS``."""
    model: str
    """As the client said it, and is answered."""
    fingerprint: str
    job: Job
    stream: bool = False
    echoes: tuple[Echo, ...] = ()
    """One for each prompt, or none."""
    stream_interval: int = 1
    """Tokens of a choice that an event of a stream gathers, after the first."""
    ping: int = 0
    """Seconds of silence after which a stream says that it lives; 0: as the server has it, -1: it
    never does."""
    warnings: tuple[str, ...] = ()
    show: Json = {}
    """What the answer shall show, in the dialect's own words."""
    images: tuple[str, ...] = ()
    """Image files in base64, whose tiles the job's media are."""

    @property
    def silence(self) -> float:
        """Seconds, after which a stream says that it lives."""
        return inf if self.ping < 0 else self.ping or SILENCE_SECONDS


class Envelope(msgspec.Struct, frozen=True):
    """What tells one answer from another of the same request; given from outside."""

    id: str
    """The server's own: never taken from the client."""
    created: int
    """Unix time, seconds."""
    completed: int | None = None
    """The same of an answer that was complete once; None is now."""
