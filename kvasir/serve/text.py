"""The text side of a model: its names, tokenizer and chat template, without any weights."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property

from kvasir.core.errors import RequestError, printable
from kvasir.serve.slices import Slices, Work
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import ModelSource

INLINE_BYTES = 4096
"""Texts up to this size are tokenized on the event loop (about a millisecond), longer ones in a
thread."""

MESSAGE_BYTES = 64
"""What a message costs beside its content, in the same measure."""


class TextModel:
    """Immutable; its methods run long work in threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template

    async def encode(
        self, text: str, *, add_special: bool, limit: int, param: str
    ) -> tuple[int, ...]:
        """Ids of ``text``. Raises RequestError (400) before tokenizing what cannot fit ``limit``
        tokens."""
        if self._check(text, limit, param) <= INLINE_BYTES:
            return tuple(self.tokenizer.encode(text, add_special))
        return tuple(await asyncio.to_thread(self.tokenizer.encode, text, add_special))

    async def read_many(
        self,
        prompts: Sequence[str | tuple[int, ...]],
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
                text = str(rest.popleft())
                found.append(
                    await self.encode(text, add_special=add_special, limit=limit, param=param)
                )
        return found

    def _read_short(
        self,
        rest: deque[str | tuple[int, ...]],
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
            elif self._check(prompt, limit, param) > INLINE_BYTES:
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
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        add_special: bool,
    ) -> tuple[int, ...]:
        """Ids of a conversation in the model's own form. Raises RequestError (400)."""
        size = sum(len(str(message.get("content"))) + MESSAGE_BYTES for message in messages)
        if size <= INLINE_BYTES:
            return self._render(messages, add_generation_prompt, add_special)
        return await asyncio.to_thread(self._render, messages, add_generation_prompt, add_special)

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
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool,
        add_special: bool,
    ) -> tuple[int, ...]:
        ids = self.template.encode(messages, add_generation_prompt)
        return tuple(self.tokenizer.surround(ids) if add_special else ids)

    @cached_property
    def _longest_token(self) -> int:
        """Bytes; 30 ms for 50,000 tokens, so only long prompts pay for it, once."""
        sizes = (len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size))
        return max(1, *sizes)


def load_text(source: ModelSource) -> TextModel:
    """Raises ModelError. A model without chat template serves completions only."""
    tokenizer = load_tokenizer(source)
    template = ChatTemplate(source, tokenizer)
    source.release()
    return TextModel(tokenizer, template)


def served_names(option: str | None, source_name: str) -> Sequence[str]:
    """Names under which the model is asked for: a comma-separated option, else the file's name."""
    names = [name.strip() for name in printable(option or "").split(",") if name.strip()]
    return names or [source_name]
