"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import msgspec


class TokenizePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a text that is tokenized as a whole."""

    text: str
    special: bool = True
    """Whether names of special tokens in it are these tokens; else they are words."""


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One of ``prompt``, ``messages`` and ``pieces``."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    pieces: list[TokenizePiece] | None = None
    continues: bool = False
    """Of pieces: their text goes on behind others."""
    add_special_tokens: bool | None = None
    """Default: true for a prompt, false for messages and pieces."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: list[int]


UNSUPPORTED_TOKENIZE: dict[str, tuple[object, ...]] = {
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "tools": ([],),
    "mm_processor_kwargs": (),
}
