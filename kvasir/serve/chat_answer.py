"""Words of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.engine.choice import Delta
from kvasir.serve.answer import Envelope, Json, Whole
from kvasir.serve.generation import Job
from kvasir.serve.logprobs import chat_logprobs
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
        self._has_logprobs = logprobs

    def opening(self) -> list[Json]:
        role = {"role": "assistant", "content": ""}
        return [self._chunk(i, role, None, None, None) for i in range(self._n_choices)]

    def chunks(self, delta: Delta) -> list[Json]:
        logprobs = chat_logprobs(self._tokenizer, delta.logprobs) if self._has_logprobs else None
        if not delta.text and delta.finish is None and not (logprobs and logprobs["content"]):
            return []
        content = {"content": delta.text} if delta.text else {}
        return [self._chunk(delta.index, content, logprobs, delta.finish, delta.stop_reason)]

    def _chunk(
        self,
        index: int,
        delta: Json,
        logprobs: Json | None,
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

    def whole(self, index: int, choices: Sequence[Whole]) -> Json:
        choice = choices[index]
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_logprobs(self._tokenizer, choice.logprobs)
            if self._has_logprobs
            else None,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
        }
