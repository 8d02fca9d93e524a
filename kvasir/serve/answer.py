"""What a dialect is: how a request is read, and how its answer is worded."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.serve.answers.openai import CompletionDetails, TokenUsage
from kvasir.serve.asked import Asked, LoadWish
from kvasir.serve.parts import Parts
from kvasir.serve.resolved import Envelope, Job, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.pieces import Piece


@dataclass(slots=True)
class Whole:
    """All deltas of one choice but their logprobs, which the grammar gathers."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    n_cached: int = 0
    finish: str | None = None
    stop_reason: int | str | None = None
    vector: bytes = b""
    """As in ``TokenEvent``."""
    logits: Sequence[float] = ()
    """What the job's head makes of it."""
    index: int = 0
    """Of all that were computed."""
    logprob: float = 0.0
    """Of all its tokens together, where they have theirs."""
    pieces: list[Piece] = field(default_factory=list)
    has_calls: bool = False
    """As in ``Delta``."""

    def add(self, delta: Delta) -> None:
        self.vector = delta.vector
        self.texts.append(delta.text)
        self.tokens += delta.tokens
        self.pieces += delta.pieces
        self.n_cached += delta.n_cached
        for item in delta.logprobs:
            self.logprob += item.logprob
        self.finish, self.stop_reason = delta.finish, delta.stop_reason
        self.has_calls = delta.has_calls

    @property
    def text(self) -> str:
        return "".join(self.texts)


def best_of(wholes: Sequence[Whole], job: Job) -> list[Whole]:
    """The choices that are the answer, best first; of equal ones the first."""
    if not job.n_best:
        return list(wholes)
    n, found = job.params.n, []
    for first in range(0, len(wholes), n):
        ranked = sorted(wholes[first : first + n], key=lambda whole: -whole.logprob)
        found += ranked[: job.n_best]
    return found


@dataclass(slots=True)
class Tally:
    """Tokens of an answer so far, and when they came: seconds of the machine's monotonic clock."""

    job: Job
    arrived: float
    n_prompt: int = 0
    n_output: int = 0
    n_cached: int = 0
    """Prompt tokens that were not computed."""
    n_reasoning: int = 0
    """Output tokens inside of reasoning."""
    prediction_hits: int = 0
    """Tokens of the prediction that were drafted and drawn."""
    prediction_misses: int = 0
    """The same of those that were not drawn."""
    first: float = 0.0
    """When the first token came; 0 before."""
    report: Callable[[], Json] = dict
    """Times of the answer, once it is complete."""

    def __post_init__(self) -> None:
        self.n_prompt = self.job.n_prompt_tokens

    @property
    def tells_reasoning(self) -> bool:
        """Whether the model's reasoning is known as such."""
        reading = self.job.reading
        return reading is not None and reading.reasoning is not None

    def add(self, delta: Delta) -> None:
        n_tokens = len(delta.tokens)
        if not self.first and n_tokens:
            self.first = time.monotonic()
        self.n_output += n_tokens
        self.n_reasoning += delta.n_reasoning
        self.prediction_hits += delta.prediction_hits
        self.prediction_misses += delta.prediction_misses
        if delta.n_cached and self.job.is_first(delta.index):
            self.n_cached += delta.n_cached

    def seconds(self) -> tuple[float, float]:
        """Until the first token, and since then."""
        now = time.monotonic()
        first = self.first or now
        return first - self.arrived, now - first


class Grammar(Protocol):
    """Words one answer. It is told every delta once, in order, by ``read``; then either ``events``
    or in the end ``whole`` is asked for. An event is its bytes, in parts that may be long: the nth
    of equal requests are equal, but for times."""

    media: bytes
    """Media type of an answer that is not streamed."""
    headers: Sequence[tuple[bytes, bytes]]
    """Of a stream."""
    silence: bytes
    """What a stream says when there is nothing to say; empty where nothing may be."""
    has_logprobs: bool
    """Whether there is much to word in a delta."""

    def opening(self, tally: Tally) -> Iterator[Parts]:
        """Events before the first token."""
        ...

    def read(self, delta: Delta) -> Work[None]:
        """Words the logprobs of ``delta``, for the next ``events`` or for ``whole``."""
        ...

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        """Events that tell ``delta``, the last that was read."""
        ...

    def ending(self, tally: Tally) -> Iterator[Parts]:
        """Events after the last token."""
        ...

    def failure(self, error: KvasirError) -> bytes:
        """The event that ends a stream which has begun."""
        ...

    def whole(self, choices: Sequence[Whole], tally: Tally) -> Work[Parts]:
        """The answer that is not streamed; asked for once."""
        ...


AnswerTypes = tuple[Any, ...]
"""Types of ``serve.answers``: JSON of any of them."""


class Form(Protocol):
    """How a dialect words an error that comes instead of an answer."""

    def __call__(self, error: KvasirError) -> Mapping[str, Any]: ...


class Dialect(msgspec.Struct, frozen=True):
    """One way of clients to say a request and to be answered."""

    name: str
    prefix: str
    """Of the ids of its answers."""
    read: Callable[..., Asked]
    """``read(body, strict=…)``: raises RequestError (400)."""
    grammar: Callable[[Resolved, Envelope, Tokenizer], Grammar]
    form: Form
    needs_model: bool = True
    """Whether a request must say the name of a model."""
    request: type[msgspec.Struct] | None = None
    """What its JSON is read into."""
    media: tuple[bytes, ...] = ()
    """Types that its clients give JSON beside application/json."""
    answer: AnswerTypes = ()
    """What its answers are that are not streamed."""
    events: AnswerTypes = ()
    """What an event of a stream is, where there are streams; errors end one in ``form``."""
    streams_lines: bool = False
    """Whether an event is a line of NDJSON, and not one of server-sent events."""
    read_load: Callable[..., LoadWish | None] | None = None
    """``read_load(body, strict=…)``: whether only a model is asked for, where that can be said."""

    def new_envelope(self) -> Envelope:
        return Envelope(f"{self.prefix}{secrets.token_hex(16)}", int(time.time()))


def usage(tally: Tally) -> TokenUsage:
    """In OpenAI's words."""
    found: TokenUsage = {
        "prompt_tokens": tally.n_prompt,
        "total_tokens": tally.n_prompt + tally.n_output,
        "completion_tokens": tally.n_output,
        "prompt_tokens_details": {"cached_tokens": tally.n_cached},
    }
    details: CompletionDetails = {}
    if tally.tells_reasoning:
        details["reasoning_tokens"] = tally.n_reasoning
    if tally.job.prediction:
        details["accepted_prediction_tokens"] = tally.prediction_hits
        details["rejected_prediction_tokens"] = tally.prediction_misses
    if details:
        found["completion_tokens_details"] = details
    return found
