"""Words of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvasir.core.messages import TokenLogprob
from kvasir.engine.choice import Delta
from kvasir.serve.answer import Envelope, Json, Whole
from kvasir.serve.echo import Echo
from kvasir.serve.generation import Job
from kvasir.serve.logprobs import CompletionLogprobs
from kvasir.tokenizer.tokenizer import Tokenizer


class CompletionAnswer:
    """One choice per prompt and sample. The echo of the prompt comes first, if there is one; with
    ``silent`` nothing follows it."""

    def __init__(
        self,
        envelope: Envelope,
        job: Job,
        tokenizer: Tokenizer,
        *,
        echoes: Sequence[Echo],
        logprobs: bool,
        silent: bool,
    ) -> None:
        self.envelope = envelope
        self.chunk_kind = envelope.kind
        self._job = job
        self._echoes = echoes
        """One for each prompt, or none."""
        self._silent = silent
        self._has_logprobs = logprobs
        self._logprobs = [
            CompletionLogprobs(
                tokenizer,
                skip_special=job.params.skip_special_tokens,
                begin=len(self._prompt_text(i)),
            )
            for i in range(job.n_choices if logprobs else 0)
        ]
        self._echoed = [not echoes] * job.n_choices

    def opening(self) -> list[Json]:
        return []

    def chunks(self, delta: Delta) -> list[Json]:
        choices = []
        waits = self._has_logprobs and not delta.prompt_logprobs and not delta.n_tokens
        if not self._echoed[delta.index] and (not waits or delta.finish is not None):
            self._echoed[delta.index] = True
            choices.append(self._prompt_choice(delta))
        is_news = delta.text or delta.finish is not None or (self._has_logprobs and delta.logprobs)
        if is_news:
            text, logprobs = ("", ()) if self._silent else (delta.text, delta.logprobs)
            choices.append(
                _choice(
                    delta.index,
                    text,
                    self._piece(delta.index, logprobs),
                    delta.finish,
                    delta.stop_reason,
                )
            )
        return [self.envelope.wrap([choice]) for choice in choices]

    def whole(self, index: int, choices: Sequence[Whole]) -> Json:
        whole = choices[index]
        shared = choices[index - index % self._job.params.n].prompt_logprobs
        prompt = self._prompt_text(index)
        text, logprobs = ("", []) if self._silent else (whole.text, whole.logprobs)
        pieces = [self._prompt_piece(index, shared)] if self._echoes else []
        pieces.append(self._piece(index, logprobs))
        return _choice(index, prompt + text, _joined(pieces), whole.finish, whole.stop_reason)

    def _prompt_choice(self, delta: Delta) -> Json:
        piece = self._prompt_piece(delta.index, delta.prompt_logprobs)
        return _choice(delta.index, self._prompt_text(delta.index), piece, None, None)

    def _prompt_text(self, index: int) -> str:
        return self._echoes[index // self._job.params.n].text if self._echoes else ""

    def _prompt_piece(self, index: int, logprobs: Sequence[TokenLogprob]) -> Json | None:
        if not self._has_logprobs:
            return None
        begins = self._echoes[index // self._job.params.n].begins
        return self._logprobs[index].of_prompt(self._job.prompt_of(index)[0], logprobs, begins)

    def _piece(self, index: int, logprobs: Sequence[TokenLogprob]) -> Json | None:
        return self._logprobs[index].piece(logprobs) if self._has_logprobs else None


def _choice(
    index: int, text: str, logprobs: Json | None, finish: str | None, stop_reason: int | str | None
) -> Json:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop_reason,
    }


def _joined(pieces: Sequence[Json | None]) -> Json | None:
    present = [piece for piece in pieces if piece is not None]
    if not present:
        return None
    joined: dict[str, list[Any]] = {key: [] for key in present[0]}
    for piece in present:
        for key, values in piece.items():
            joined[key].extend(values)
    return joined
