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
    """One of ``prompt``, ``content``, ``messages`` and ``pieces``."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    """llama-server's name for a prompt, around which nothing is put unless that is asked for."""
    messages: list[dict[str, Any]] | None = None
    pieces: list[TokenizePiece] | None = None
    continues: bool = False
    """Of pieces: their text goes on behind others."""
    add_special_tokens: bool | None = None
    """Default: true for ``prompt``, else false."""
    add_special: bool | None = None
    """llama-server's name for it."""
    parse_special: bool = True
    """Whether names of special tokens in a prompt are these tokens; else they are words."""
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Of ``messages``, as a chat has them."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False
    with_pieces: bool = False
    """Each of ``tokens`` with its text, or its bytes where they are none."""


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: list[int]


UNSUPPORTED_TOKENIZE: dict[str, tuple[object, ...]] = {
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "mm_processor_kwargs": (),
}
