"""One choice of a request: engine events in, pieces of text out."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.core.params import SamplingParams
from kvasir.sampling.validate import stop_strings
from kvasir.tokenizer.detokenize import StreamDecoder
from kvasir.tokenizer.stops import StopStrings
from kvasir.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one choice."""

    index: int
    text: str = ""
    n_tokens: int = 0
    n_cached: int = 0
    """Prompt tokens that were not computed; told once."""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    scores: bytes = b""
    """As in ``TokenEvent``."""
    finish: str | None = None
    """None while the choice runs, else "stop" or "length"."""
    stop_reason: int | str | None = None
    """The stop string or the requested stop id that ended it; None for the model's own end."""


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

    def __init__(self, index: int, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._index = index
        self._params = params
        ends = () if params.ignore_eos else tokenizer.eos_ids
        self._named_ids = frozenset(params.stop_token_ids or ()) - frozenset(ends)
        self._decoder = StreamDecoder(tokenizer, params.skip_special_tokens, continues=True)
        self._stops = StopStrings(stop_strings(params), params.include_stop_str_in_output)
        self.n_tokens = 0
        self.finished = False

    def feed(self, event: TokenEvent) -> Delta:
        """Raises ChoiceFailed for an event that carries an error."""
        if event.finish in ("error", "cancelled"):
            raise failure_of(event)
        parts: list[str] = []
        for count, token in enumerate(event.tokens, start=1):
            is_stop = event.stop_id is not None and count == len(event.tokens)
            text, matched = self._take(token, is_stop)
            parts.append(text)
            if matched is not None:
                return self._delta(event, "".join(parts), count, "stop", matched)
        if event.finish is not None:
            parts.append(self._flush())
        reason = event.stop_id if event.stop_id in self._named_ids else None
        return self._delta(event, "".join(parts), len(event.tokens), event.finish, reason)

    def _take(self, token: int, is_stop: bool) -> tuple[str, str | None]:
        self.n_tokens += 1
        if is_stop and not self._params.include_stop_str_in_output:
            return "", None
        if not self._params.detokenize:
            return "", None
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
        return Delta(
            index=self._index,
            text=text,
            n_tokens=count,
            n_cached=event.n_cached,
            logprobs=event.logprobs[:count],
            prompt_logprobs=event.prompt_logprobs,
            scores=event.scores,
            finish=finish,
            stop_reason=reason,
        )


def failure_of(event: TokenEvent) -> ChoiceFailed:
    """Of an event that carries an error."""
    code = event.error_code or "engine_fault"
    failure = ChoiceFailed(event.error or "the engine ended the request", code=code)
    failure.status = STATUS.get(code, 400)
    failure.retry_after = event.retry_after or None
    return failure
