"""The text side of a model: its names, tokenizer and chat template, without any weights."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import msgspec
from msgspec.structs import replace

from kvasir.config.pixels import PixelBounds
from kvasir.core.errors import RequestError, printable
from kvasir.serve.facts import FileFacts, facts_of
from kvasir.serve.pieces import Mixed, spelled
from kvasir.serve.slices import Slices, Work
from kvasir.text.reads import ReadsVectors
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.image_text import NO_IMAGES
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.messages import shown_tools
from kvasir.tokenizer.spelling import TextPiece
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.detect import Detected, detect, reasoning_of, special_names
from kvasir.toolcalls.format import Reasoning
from kvasir.vision.sight import Sight, sight_of
from kvasir.weights.source import ModelSource

_log = logging.getLogger(__name__)

INLINE_BYTES = 4096
"""Texts up to this size are tokenized on the event loop (about a millisecond), longer ones in a
thread."""

INLINE_SECONDS = 0.01
"""Of the processor, for a short conversation: templates that take longer are rendered in threads.
Those of real models take a tenth; what a template may take at most, the sandbox says."""

MESSAGE_BYTES = 64
"""What a message costs beside what it says, in the same measure."""

DISTRUST = 8
"""After each time that the event loop waited for a template, so many times as many quick renderings
in a row as before give it back its place there."""


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation is written."""

    add_generation_prompt: bool = True
    continues_last: bool = False
    """The answer goes on with the last message."""
    add_special: bool = False
    """Whether the tokenizer adds the special tokens with which texts begin."""
    variables: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Of the template."""
    tools: tuple[Mapping[str, Any], ...] = ()

    def showing_tools(self, name: str) -> Rendering:
        """With its tools among the variables, for a template that looks for them in ``name``."""
        if not self.tools:
            return self
        return replace(self, variables={**self.variables, **shown_tools(self.tools, name)})


def n_written(values: Iterable[object], most: int = INLINE_BYTES) -> int:
    """Characters of all texts in ``values``, however deep, and one for each entry of a list or a
    mapping. What is beyond ``most`` is not counted out."""
    size, left = 0, list(values)
    while left and size <= most:
        value = left.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, Mapping | list | tuple):
            size += len(value)
            if size <= most:
                left.extend(value)
                left.extend(value.values() if isinstance(value, Mapping) else ())
    return size


def is_short(messages: Sequence[Mapping[str, object]], rendering: Rendering) -> bool:
    """Whether no template that is quick needs a thread for them."""
    size = len(messages) * MESSAGE_BYTES
    return size + n_written((*messages, rendering.variables, rendering.tools)) <= INLINE_BYTES


class TextModel:
    """Its methods run long work in threads."""

    def __init__(
        self,
        source: ModelSource,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        facts: FileFacts,
        sight: Sight | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.facts = facts
        self._calls: Detected | None = None
        self._n_quick = 0
        """Short conversations that the template was quick with, since it last was not."""
        self._n_proofs = 1
        """How many of them it takes to be trusted."""
        self._source = source
        self.sight = sight
        """Of a model that sees images."""

    @cached_property
    def heads(self) -> ReadsVectors:
        """For threads: the first who asks waits for an import."""
        # It brings NumPy and all families, 0.2 s and 25 MB, and most models make neither labels nor
        # vectors that go through layers of their own. It holds the event loop for 6 ms at most.
        from kvasir.text.heads import Heads

        return Heads(self._source)

    async def encode(
        self, text: str, *, add_special: bool, limit: int, param: str
    ) -> tuple[int, ...]:
        """Ids of ``text``. Raises RequestError (400) before tokenizing what cannot fit ``limit``
        tokens."""
        if self._check(text, limit, param) <= INLINE_BYTES:
            return tuple(self.tokenizer.encode(text, add_special))
        return tuple(await asyncio.to_thread(self.tokenizer.encode, text, add_special))

    async def spell(
        self, pieces: Sequence[TextPiece], *, add_special: bool, continues: bool, limit: int
    ) -> tuple[int, ...]:
        """Ids of the text that ``pieces`` make together. Raises as ``encode``."""
        self.check_bytes(sum(len(piece.text) for piece in pieces), limit, "pieces")
        size = sum(len(piece.text.encode("utf-8", "surrogatepass")) for piece in pieces)
        self.check_bytes(size, limit, "pieces")
        spell = partial(self.template.spell, pieces, add_special=add_special, continues=continues)
        return tuple(spell() if size <= INLINE_BYTES else await asyncio.to_thread(spell))

    async def read_mixed(
        self, mixed: Mixed, *, add_special: bool, limit: int, param: str
    ) -> tuple[int, ...]:
        """As ``encode``."""
        self.check_bytes(mixed.n_bytes, limit, param)
        if mixed.n_bytes <= INLINE_BYTES:
            return spelled(mixed, self.tokenizer, add_special)
        return await asyncio.to_thread(spelled, mixed, self.tokenizer, add_special)

    async def read_many(
        self,
        prompts: Sequence[str | tuple[int, ...] | Mixed],
        slices: Slices,
        *,
        add_special: bool,
        limit: int,
        param: str,
    ) -> list[tuple[int, ...]]:
        """Ids of each of ``prompts``, which are texts or ids. Raises as ``encode``."""
        found: list[tuple[int, ...]] = []
        rest = deque(prompts)
        while rest:
            await slices.run(self._read_short(rest, found, add_special, limit, param))
            if rest:
                prompt = rest.popleft()
                if isinstance(prompt, Mixed):
                    work = self.read_mixed(
                        prompt, add_special=add_special, limit=limit, param=param
                    )
                else:
                    text = str(prompt)
                    work = self.encode(text, add_special=add_special, limit=limit, param=param)
                found.append(await work)
        return found

    def _read_short(
        self,
        rest: deque[str | tuple[int, ...] | Mixed],
        found: list[tuple[int, ...]],
        add_special: bool,
        limit: int,
        param: str,
    ) -> Work[None]:
        """Reads from ``rest`` until it meets a long text."""
        while rest:
            prompt = rest[0]
            if isinstance(prompt, tuple):
                found.append(prompt)
            elif isinstance(prompt, Mixed) or self._check(prompt, limit, param) > INLINE_BYTES:
                return
            else:
                found.append(tuple(self.tokenizer.encode(prompt, add_special)))
            rest.popleft()
            yield

    def _check(self, text: str, limit: int, param: str) -> int:
        """Bytes of ``text``. Raises RequestError (400) for more than ``limit`` tokens can spell."""
        self.check_bytes(len(text), limit, param)
        n_bytes = len(text if text.isascii() else text.encode("utf-8", errors="surrogatepass"))
        self.check_bytes(n_bytes, limit, param)
        return n_bytes

    async def render(
        self, messages: Sequence[Mapping[str, object]], rendering: Rendering
    ) -> tuple[int, ...]:
        """Ids of a conversation in the model's own form. Raises RequestError (400)."""
        if not is_short(messages, rendering):
            return await asyncio.to_thread(self._render, messages, rendering)
        if self.renders_inline:
            return self.render_short(messages, rendering)
        return await asyncio.to_thread(self.render_short, messages, rendering)

    @property
    def renders_inline(self) -> bool:
        """Whether a short conversation may be rendered on the event loop."""
        return self._n_quick >= self._n_proofs

    def render_short(
        self, messages: Sequence[Mapping[str, object]], rendering: Rendering
    ) -> tuple[int, ...]:
        """Ids of a short conversation; learns how long that takes. A template that kept the event
        loop waiting does so more and more rarely. Raises RequestError (400)."""
        was_inline, began = self.renders_inline, time.thread_time()
        try:
            return self._render(messages, rendering)
        finally:
            if time.thread_time() - began < INLINE_SECONDS:
                self._n_quick += 1
            else:
                self._n_quick = 0
                self._n_proofs *= DISTRUST if was_inline else 1

    def check_bytes(self, n_bytes: int, limit: int, param: str) -> None:
        """Raises RequestError (400) for a text of ``n_bytes`` that no tokenization brings under
        ``limit``."""
        if n_bytes <= limit:
            return
        at_least = n_bytes // self._longest_token
        if at_least > limit:
            raise RequestError(
                f"the context holds {limit} tokens, the prompt has at least {at_least}: shorten it",
                param=param,
                code="context_length_exceeded",
            )

    def _render(
        self, messages: Sequence[Mapping[str, object]], rendering: Rendering
    ) -> tuple[int, ...]:
        ids = self.template.encode(
            messages,
            rendering.add_generation_prompt,
            rendering.continues_last,
            **rendering.variables,
        )
        return tuple(self.tokenizer.surround(ids) if rendering.add_special else ids)

    @cached_property
    def reasoning(self) -> Reasoning | None:
        """What the template says that reasoning is written between."""
        return reasoning_of(self.template)

    async def calls(self, tool_format: str) -> Detected:
        """How the model writes calls: a name of a format, or "auto", which renders a few short
        conversations the first time that somebody asks."""
        if self._calls is None:
            names = special_names(self.tokenizer)
            self._calls = await asyncio.to_thread(detect, self.template, names, tool_format)
            name = self._calls.format.name if self._calls.format else "none"
            _log.info("tool_format: %s: %s", name, self._calls.why)
        return self._calls

    async def report(self, tool_format: str) -> None:
        """Says in the log how reasoning and calls of this model are written."""
        if self.template.problem is None:
            await self.calls(tool_format)
            found = await asyncio.to_thread(lambda: self.reasoning)
            _log.info("reasoning: %s", f"{found.begin} … {found.end}" if found else "none")

    @cached_property
    def _longest_token(self) -> int:
        """Bytes; 30 ms for 50,000 tokens, so only long prompts pay for it, once."""
        sizes = (len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size))
        return max(1, *sizes)


def load_text(source: ModelSource, bounds: PixelBounds | None = None) -> TextModel:
    """``bounds``: of images. Raises ModelError, ConfigError. A model without chat template serves
    completions only."""
    tokenizer = load_tokenizer(source)
    sight, facts = sight_of(source, tokenizer, bounds), facts_of(source)
    template = ChatTemplate(source, tokenizer, sight.spelling if sight else NO_IMAGES)
    source.release()
    return TextModel(source, tokenizer, template, facts, sight)


def served_names(option: str | None, source_name: str) -> Sequence[str]:
    """Names under which the model is asked for: a comma-separated option, else the file's name."""
    names = [name.strip() for name in printable(option or "").split(",") if name.strip()]
    return names or [source_name]
