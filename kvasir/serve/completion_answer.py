"""Words of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvasir.serve.answer import Chunk, Envelope, Json, Whole
from kvasir.serve.echo import Echo
from kvasir.serve.generation import Job
from kvasir.serve.logprobs import CompletionLogprobs, PromptLogprobs, Table, joined
from kvasir.serve.parts import HOLE, Parts, filled
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
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
        self.has_logprobs = logprobs
        self._tokenizer = tokenizer
        self._prompts: dict[int, PromptLogprobs] = {}
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._echoed = [not echoes] * job.n_choices

    def opening(self) -> list[Json]:
        return []

    def read(self, delta: Delta) -> Work[None]:
        if not self.has_logprobs:
            return
        if delta.scores:
            yield from self._prompt(delta.index).add(delta.scores)
        if not self._silent:
            yield from self._of(delta.index).add(delta.logprobs)

    def chunks(self, delta: Delta) -> list[Chunk]:
        found, index = [], delta.index
        if not self._echoed[index] and not self._waits(delta):
            self._echoed[index] = True
            tables = [self._prompt(index).table] if self.has_logprobs else []
            found.append(self._chunk(index, self._prompt_text(index), tables))
        is_news = delta.text or delta.finish is not None or (self.has_logprobs and delta.logprobs)
        if is_news:
            text, tables = "" if self._silent else delta.text, self._taken(index)
            found.append(self._chunk(index, text, tables, delta.finish, delta.stop_reason))
        return found

    def whole(self, index: int, choice: Whole) -> Parts:
        text = self._prompt_text(index) + ("" if self._silent else choice.text)
        tables = self._taken(index)
        if self._echoes and self.has_logprobs:
            tables.insert(0, self._prompt(index).table)
        value = _choice(index, text, self._hole, choice.finish, choice.stop_reason)
        return filled(value, self._joined(tables))

    def _waits(self, delta: Delta) -> bool:
        """For the scores of the prompt, which come before anything else."""
        has_begun = delta.n_tokens > 0 or delta.finish is not None
        return self.has_logprobs and not has_begun and not self._prompt(delta.index).is_whole

    def _chunk(
        self,
        index: int,
        text: str,
        tables: list[Table],
        finish: str | None = None,
        stop_reason: int | str | None = None,
    ) -> Chunk:
        value = self.envelope.wrap([_choice(index, text, self._hole, finish, stop_reason)])
        return Chunk(value, self._joined(tables))

    def _joined(self, tables: list[Table]) -> Parts:
        return joined(tables) if self.has_logprobs else []

    @property
    def _hole(self) -> msgspec.Raw | None:
        return HOLE if self.has_logprobs else None

    def _prompt_text(self, index: int) -> str:
        return self._echoes[index // self._job.params.n].text if self._echoes else ""

    def _taken(self, index: int) -> list[Table]:
        return [self._of(index).take()] if self.has_logprobs else []

    def _prompt(self, index: int) -> PromptLogprobs:
        number = index // self._job.params.n
        found = self._prompts.get(number)
        if found is None:
            first, begins = self._job.prompts[number][0], self._echoes[number].begins
            found = self._prompts[number] = PromptLogprobs(self._tokenizer, first, begins)
        return found

    def _of(self, index: int) -> CompletionLogprobs:
        found = self._logprobs.get(index)
        if found is None:
            found = self._logprobs[index] = CompletionLogprobs(
                self._tokenizer,
                skip_special=self._job.params.skip_special_tokens,
                begin=len(self._prompt_text(index)),
            )
        return found


def _choice(
    index: int,
    text: str,
    logprobs: msgspec.Raw | None,
    finish: str | None,
    stop_reason: int | str | None,
) -> Json:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop_reason,
    }
