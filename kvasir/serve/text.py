"""The text side of a model: its names, tokenizer and chat template, without any weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.core.errors import RequestError
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import ModelSource

INLINE_CHARS = 4096
"""Texts up to this length are tokenized on the event loop (about a millisecond), longer ones in a thread."""


@dataclass(frozen=True, slots=True)
class TextModel:
    tokenizer: Tokenizer
    template: ChatTemplate | None
    longest_token: int
    """Bytes of the longest token: no text of b bytes has fewer than b / longest_token tokens."""

    async def encode(self, text: str, *, add_special: bool, limit: int, param: str) -> tuple[int, ...]:
        """Ids of ``text``, at most ``limit``.

        Raises RequestError (400), for a text that cannot fit before it is tokenized.
        """
        n_bytes = len(text.encode("utf-8", errors="surrogatepass"))
        at_least = n_bytes // self.longest_token
        if at_least > limit:
            raise too_long(at_least, limit, param, bound="at least ")
        if len(text) <= INLINE_CHARS:
            return tuple(self.tokenizer.encode(text, add_special))
        return tuple(await asyncio.to_thread(self.tokenizer.encode, text, add_special))


def too_long(n_prompt: int, limit: int, param: str, bound: str = "") -> RequestError:
    return RequestError(
        f"the model's context is {limit} tokens, the prompt has {bound}{n_prompt}: shorten it",
        param=param,
        code="context_length_exceeded",
    )


def load_text(source: ModelSource) -> TextModel:
    """Raises ModelError. A model without chat template serves completions only."""
    tokenizer = load_tokenizer(source)
    return TextModel(tokenizer, ChatTemplate.load(source, tokenizer), longest_token(tokenizer))


def longest_token(tokenizer: Tokenizer) -> int:
    """Bytes. A name in the vocabulary is at least as long as the bytes it stands for."""
    return max(1, max(len(piece.encode()) for piece in tokenizer.pieces()))


def served_names(option: str | None, source_name: str) -> Sequence[str]:
    """Names under which the model is asked for: a comma-separated option, else the file's name."""
    names = [name.strip() for name in (option or "").split(",") if name.strip()]
    return names or [source_name]
