"""One choice of a request: engine events in, pieces of text out."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.tokenizer.detokenize import StreamDecoder
from kvasir.tokenizer.stops import StopStrings
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.parser import MessageParser
from kvasir.toolcalls.pieces import Piece, Said
from kvasir.toolcalls.reading import Reading
from kvasir.validation.regex import PatternMatcher
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.stops import stop_patterns, stop_strings


class Delta(msgspec.Struct, frozen=True, gc=False):
    """News of one choice."""

    index: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    n_cached: int = 0
    """Prompt tokens that were not computed; told once."""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    scores: bytes = b""
    """As in ``TokenEvent``."""
    vector: bytes = b""
    """As there."""
    finish: str | None = None
    """None while the choice runs, else "stop" or "length"."""
    stop_reason: int | str | None = None
    """The stop string, the ``stop_regex`` or the requested stop id that ended it; None for the
    model's own end."""
    pieces: tuple[Piece, ...] = ()
    """Of an answer that is read: what is new of reasoning, content and calls; then ``text`` is the
    content alone."""
    has_calls: bool = False
    """Whether a call has begun by now; of a choice that ends, whether the last is whole, too."""
    n_calls: int = 0
    """Of a choice that ends: calls that it made."""
    is_cut: bool = False
    """Whether the last of them has no end."""
    is_content: tuple[bool, ...] = ()
    """Of an answer that is read: for each token whether it is of the content before any call."""
    n_reasoning: int = 0
    """Tokens inside of reasoning."""
    prediction_hits: int = 0
    """As in ``TokenEvent``."""
    prediction_misses: int = 0
    """As there."""

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


STATUS = {
    "model_numerics": 500,
    "engine_fault": 500,
    "deadline_unreachable": 429,
    "deadline_exceeded": 504,
}
"""Of errors that are not in the request alone."""


class ChoiceFailed(KvasirError):
    """The engine ended a choice with an error."""


class Choice:
    """Text state of one choice. Feed events until ``finished``."""

    __slots__ = (
        "_decoder",
        "_index",
        "_marks",
        "_named_ids",
        "_needs_look",
        "_params",
        "_reader",
        "_stops",
        "finished",
        "n_tokens",
    )

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        params: SamplingParams,
        reading: Reading | None = None,
    ) -> None:
        """``reading``: how to tell reasoning, content and calls apart; its marks are bound."""
        self._index = index
        self._reader = None if reading is None else _PieceReader(MessageParser(reading, index))
        self._marks = {} if reading is None else reading.marks
        self._params = params
        ends = () if params.ignore_eos else tokenizer.eos_ids
        self._named_ids = frozenset(params.stop_token_ids or ()) - frozenset(ends)
        self._decoder = StreamDecoder(tokenizer, params.skip_special_tokens, continues=True)
        strings, patterns = stop_strings(params), stop_patterns(params)
        matcher = PatternMatcher(patterns) if patterns else None
        self._stops = StopStrings(strings, params.include_stop_str_in_output, matcher)
        self._needs_look = bool(strings or patterns) or not params.detokenize or reading is not None
        """Whether there is more to a token than its text."""
        self.n_tokens = 0
        self.finished = False

    def feed(self, event: TokenEvent) -> Delta:
        """Raises ChoiceFailed for an event that carries an error."""
        if event.finish in ("error", "cancelled"):
            raise failure_of(event)
        is_plain = event.finish is None and not event.prediction_misses + event.prediction_hits
        if len(event.tokens) == 1 and is_plain and not self._needs_look:
            self.n_tokens += 1
            said = self._decoder.push(event.tokens[0]), event.tokens, event.n_cached
            return Delta(self._index, *said, event.logprobs, event.prompt_logprobs, event.scores)
        parts: list[str] = []
        for count, token in enumerate(event.tokens, start=1):
            is_stop = event.stop_id is not None and count == len(event.tokens)
            text, matched = self._take(token, is_stop)
            parts.append(text)
            if self._reader is not None:
                self._reader.take(text)
            if matched is not None:
                return self._delta(event, "".join(parts), count, "stop", matched)
        if event.finish is not None:
            rest = self._flush()
            parts.append(rest)
            if self._reader is not None:
                self._reader.feed(rest)
        reason = event.stop_id if event.stop_id in self._named_ids else None
        return self._delta(event, "".join(parts), len(event.tokens), event.finish, reason)

    def _take(self, token: int, is_stop: bool) -> tuple[str, str | None]:
        self.n_tokens += 1
        if is_stop and not self._params.include_stop_str_in_output:
            return "", None
        if not self._params.detokenize:
            return "", None
        if token in self._marks:
            return self._stops.push(self._decoder.flush() + self._marks[token], self._may_end)
        return self._stops.push(self._decoder.push(token), self._may_end)

    @property
    def _may_end(self) -> bool:
        """As in vLLM: a stop string may begin in the first ``min_tokens`` tokens, not end there."""
        return self.n_tokens > self._params.min_tokens

    def _flush(self) -> str:
        text, matched = self._stops.push(self._decoder.flush(), self._may_end)
        return text if matched is not None else text + self._stops.flush()

    def _delta(
        self, event: TokenEvent, text: str, count: int, finish: str | None, reason: int | str | None
    ) -> Delta:
        self.finished = finish is not None
        found = Delta(
            index=self._index,
            text=text,
            tokens=event.tokens[:count],
            n_cached=event.n_cached,
            logprobs=event.logprobs[:count],
            prompt_logprobs=event.prompt_logprobs,
            scores=event.scores,
            vector=event.vector,
            finish=finish,
            stop_reason=reason,
            prediction_hits=min(count, event.prediction_hits),
            prediction_misses=event.prediction_misses,
        )
        return found if self._reader is None else self._reader.read(found)


class _PieceReader:
    """Tells reasoning, content and calls of one choice apart, token by token, so that nothing
    depends on how many come at a time."""

    def __init__(self, parser: MessageParser) -> None:
        self._parser = parser
        self._pieces: list[Piece] = []
        self._is_content: list[bool] = []
        self._n_reasoning = 0

    def feed(self, text: str) -> None:
        self._pieces += self._parser.feed(text)

    def take(self, text: str) -> None:
        """What one token added."""
        parser = self._parser
        was_thinking, n_before = parser.is_thinking, len(self._pieces)
        self.feed(text)
        self._n_reasoning += was_thinking and parser.is_thinking
        says = any(isinstance(piece, Said) for piece in self._pieces[n_before:])
        self._is_content.append(not parser.n_calls and (says or parser.is_text))

    def read(self, delta: Delta) -> Delta:
        """``delta`` with what was fed since the last."""
        n_calls, is_cut = 0, False
        if delta.finish is not None:
            n_calls, is_cut = self._parser.n_calls, self._parser.is_calling
            is_own_end = delta.finish == "stop" and delta.stop_reason is None
            self._pieces += self._parser.finish(is_cut=not is_own_end)
        pieces, self._pieces = tuple(self._pieces), []
        is_content, self._is_content = tuple(self._is_content), []
        n_reasoning, self._n_reasoning = self._n_reasoning, 0
        return msgspec.structs.replace(
            delta,
            text="".join(piece.text for piece in pieces if isinstance(piece, Said)),
            pieces=pieces,
            has_calls=self._parser.n_calls > 0 and not is_cut,
            n_calls=n_calls,
            is_cut=is_cut,
            is_content=is_content,
            n_reasoning=n_reasoning,
        )


def failure_of(event: TokenEvent) -> ChoiceFailed:
    """Of an event that carries an error."""
    code = event.error_code or "engine_fault"
    failure = ChoiceFailed(event.error or "the engine ended the request", code=code)
    failure.status = STATUS.get(code, 400)
    failure.retry_after = event.retry_after or None
    return failure
