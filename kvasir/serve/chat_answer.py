"""Words of /v1/chat/completions."""

from __future__ import annotations

import msgspec

from kvasir.serve.answer import Chunk, Envelope, Json, Whole
from kvasir.serve.generation import Job
from kvasir.serve.logprobs import ChatLogprobs
from kvasir.serve.parts import HOLE, Parts, filled
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.tokenizer.tokenizer import Tokenizer

CHUNK = "chat.completion.chunk"


class ChatAnswer:
    def __init__(
        self, envelope: Envelope, job: Job, tokenizer: Tokenizer, *, logprobs: bool
    ) -> None:
        self.envelope = envelope
        self.chunk_kind = CHUNK
        self._n_choices = job.n_choices
        self._tokenizer = tokenizer
        self.has_logprobs = logprobs
        self._logprobs: dict[int, ChatLogprobs] = {}

    def opening(self) -> list[Json]:
        role = {"role": "assistant", "content": ""}
        return [self._chunk(i, role, None, None, None) for i in range(self._n_choices)]

    def read(self, delta: Delta) -> Work[None]:
        if self.has_logprobs:
            yield from self._of(delta.index).add(delta.logprobs)

    def chunks(self, delta: Delta) -> list[Chunk]:
        has_logprobs = self.has_logprobs and delta.logprobs
        if not delta.text and delta.finish is None and not has_logprobs:
            return []
        content = {"content": delta.text} if delta.text else {}
        hole = HOLE if self.has_logprobs else None
        value = self._chunk(delta.index, content, hole, delta.finish, delta.stop_reason)
        return [Chunk(value, self._taken(delta.index))]

    def _chunk(
        self,
        index: int,
        delta: Json,
        logprobs: msgspec.Raw | None,
        finish: str | None,
        stop_reason: int | str | None,
    ) -> Json:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
            "stop_reason": stop_reason,
        }
        return self.envelope.wrap([choice], kind=CHUNK)

    def whole(self, index: int, choice: Whole) -> Parts:
        value = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": HOLE if self.has_logprobs else None,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
        }
        return filled(value, self._taken(index))

    def _taken(self, index: int) -> Parts:
        return self._of(index).take() if self.has_logprobs else []

    def _of(self, index: int) -> ChatLogprobs:
        found = self._logprobs.get(index)
        if found is None:
            found = self._logprobs[index] = ChatLogprobs(self._tokenizer)
        return found
