"""A model of this machine, one conversation at a time: what ``run`` and ``chat`` talk to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from kvasir.cli.speaking import LastAnswer
from kvasir.config.pixels import PixelBounds
from kvasir.core.errors import ModelError, RequestError
from kvasir.core.messages import EngineStats
from kvasir.core.request import EngineRequest
from kvasir.core.tiles import Media
from kvasir.serve.sync_client import SyncClient
from kvasir.text.choice import Choice
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.messages import read_messages
from kvasir.validation.params import check_prompt, resolve_params
from kvasir.validation.sampling import SamplingParams
from kvasir.vision.eye import Eye
from kvasir.vision.sight import sight_of
from kvasir.weights.source import open_model

Message = dict[str, Any]
"""{"role": …, "content": text, or a list of parts}"""


class LocalModel:
    """The text side of an engine process, which it owns. Not for use by several threads."""

    def __init__(
        self,
        model: str,
        client: SyncClient,
        bounds: PixelBounds | None = None,
        mmproj: str | None = None,
    ) -> None:
        """``bounds``: of images; ``mmproj``: as in ``open_model``. Raises ModelError and
        ConfigError, here or in the engine process."""
        source = open_model(model, mmproj)
        self.name = source.name
        self._tokenizer = load_tokenizer(source)
        self._eye = Eye(sight_of(source, self._tokenizer, bounds))
        self._template = ChatTemplate(source, self._tokenizer, self._eye.spelling)
        source.release()
        self._client = client
        self._info = client.ready()
        if not self._info.vectors.writes:
            raise ModelError(
                f"{self.name} makes vectors or labels of texts and writes none: kvasir serve it, "
                "and ask /v1/embeddings or /v1/classify"
            )
        self._next_id = 0
        self.stats = EngineStats()
        """After the last step that was seen."""
        self.last = LastAnswer()

    def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]:
        """The answer in pieces. Raises RequestError when the model has no template or no room."""
        said, _ = read_messages(messages, sees=True)
        images = [image.data for message in said for image in message.images]
        self._eye.check(images, "images")  # templates of such models fail on parts of a message
        ids = self._template.encode([message.said() for message in said])
        seen = self._eye.expand(ids, images, "images")
        return self._generate(seen.ids, params, seen.media)

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that ``messages`` are, without those of images."""
        said, _ = read_messages(messages, sees=True)
        return len(self._template.encode([message.said() for message in said]))

    def why(self) -> dict[str, Any]:
        """Raises RequestError: a server remembers its steps."""
        raise RequestError("only a server knows: kvasir serve, and kvasir chat --url")

    def complete(self, prompt: str, params: SamplingParams) -> Iterator[str]:
        """The continuation of ``prompt`` in pieces."""
        return self._generate(self._tokenizer.encode(prompt), params)

    def close(self) -> None:
        """Waits until packed weights are kept."""
        self._client.close()

    def _generate(
        self, prompt: Sequence[int], params: SamplingParams, media: tuple[Media, ...] = ()
    ) -> Iterator[str]:
        """Validates at once; closing the iterator cancels what still runs."""
        info = self._info
        check_prompt(prompt, vocab_size=info.vocab_size, max_model_len=info.max_model_len)
        resolved = resolve_params(
            params,
            vocab_size=info.vocab_size,
            max_model_len=info.max_model_len,
            n_prompt=len(prompt),
            eos_ids=self._tokenizer.eos_ids,
            encode=partial(self._tokenizer.encode, add_special=False),
        )
        self._next_id += 1
        request = EngineRequest(self._next_id, tuple(prompt), resolved, media=media)
        self._client.submit(request)
        self.last = LastAnswer(n_prompt=len(prompt))
        return self._stream(request.id, Choice(0, self._tokenizer, params))

    def _stream(self, request_id: int, choice: Choice) -> Iterator[str]:
        has_ended = False
        try:
            while not choice.finished:
                news = self._client.step()
                self.stats = news.stats
                for event in news.events:
                    if event.id == request_id and not choice.finished:
                        has_ended = event.finish is not None
                        self.last.n_tokens += len(event.tokens)
                        self.last.n_cached += event.n_cached
                        yield choice.feed(event).text
        finally:
            if not has_ended:
                self._client.cancel(request_id)
