"""A model in this process, one conversation at a time: what ``run`` and ``chat`` talk to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvasir.config.options import EngineOptions
from kvasir.core.messages import EngineRequest
from kvasir.core.params import SamplingParams
from kvasir.engine.build import build_engine, load_model
from kvasir.engine.choice import Choice
from kvasir.sampling.validate import check_prompt, resolve
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer

Message = dict[str, str]
"""{"role": …, "content": …}"""


class LocalModel:
    """Owns an engine. Not for use by several threads."""

    def __init__(self, options: EngineOptions) -> None:
        """Raises ModelError and ConfigError."""
        loaded = load_model(options.model)
        self.name = loaded.source.name
        self._tokenizer = load_tokenizer(loaded.source)
        self._template = ChatTemplate(loaded.source, self._tokenizer)
        self._built = build_engine(options, loaded=loaded)
        self._next_id = 0

    def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]:
        """The answer in pieces. Raises RequestError when the model has no template or no room."""
        return self._generate(self._template.encode(messages), params)

    def complete(self, prompt: str, params: SamplingParams) -> Iterator[str]:
        """The continuation of ``prompt`` in pieces."""
        return self._generate(self._tokenizer.encode(prompt), params)

    def close(self) -> None:
        self._built.engine.close()

    def _generate(self, prompt: list[int], params: SamplingParams) -> Iterator[str]:
        """Validates at once; closing the iterator cancels what still runs."""
        spec = self._built.executor.spec
        check_prompt(prompt, vocab_size=spec.vocab_size, max_model_len=spec.max_model_len)
        resolved = resolve(
            params,
            vocab_size=spec.vocab_size,
            max_model_len=spec.max_model_len,
            n_prompt=len(prompt),
            eos_ids=self._tokenizer.eos_ids,
        )
        self._next_id += 1
        request = EngineRequest(self._next_id, tuple(prompt), resolved)
        self._built.engine.add(request)
        return self._stream(request.id, Choice(0, self._tokenizer, params))

    def _stream(self, request_id: int, choice: Choice) -> Iterator[str]:
        engine = self._built.engine
        try:
            while engine.has_work and not choice.finished:
                for event in engine.step().events:
                    if event.id == request_id and not choice.finished:
                        yield choice.feed(event).text
        finally:
            engine.cancel(request_id)
            while engine.has_work:
                engine.step()
