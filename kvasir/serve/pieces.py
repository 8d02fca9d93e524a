"""Prompts of texts and tokens in turn, and those that ask for what stands in the middle."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvasir.core.errors import RequestError
from kvasir.tokenizer.tokenizer import Tokenizer

MarkerKind = Literal["prefix", "suffix", "middle", "file", "repo"]
VOCABULARIES: tuple[dict[MarkerKind, str], ...] = (
    {
        "prefix": "<|fim_prefix|>",
        "suffix": "<|fim_suffix|>",
        "middle": "<|fim_middle|>",
        "file": "<|file_sep|>",
        "repo": "<|repo_name|>",
    },
    {
        "prefix": "<fim_prefix>",
        "suffix": "<fim_suffix>",
        "middle": "<fim_middle>",
        "file": "<file_sep>",
        "repo": "<repo_name>",
    },
    {"prefix": "<fim-prefix>", "suffix": "<fim-suffix>", "middle": "<fim-middle>"},
    {"prefix": "<|fim_begin|>", "suffix": "<|fim_hole|>", "middle": "<|fim_end|>"},
    {"prefix": "<｜fim▁begin｜>", "suffix": "<｜fim▁hole｜>", "middle": "<｜fim▁end｜>"},
    {"prefix": "▁<PRE>", "suffix": "▁<SUF>", "middle": "▁<MID>"},
    {"prefix": "<PRE>", "suffix": "<SUF>", "middle": "<MID>"},
)
"""Tokens for fill-in-the-middle: of Qwen, StarCoder 2, SantaCoder, DeepSeek (two), CodeLlama."""


class FileMarker(msgspec.Struct, frozen=True):
    """One of the tokens that a model knows parts of a file by."""

    kind: MarkerKind
    instead: str = ""
    """Text where the model has no such token; one of prefix, suffix and middle has none."""


class Mixed(msgspec.Struct, frozen=True):
    """Texts, token ids and markers, one after another."""

    parts: tuple[str | int | FileMarker, ...]
    marked_by: str | None = None
    """The field that asks for the markers."""

    @property
    def n_bytes(self) -> int:
        return sum(len(x.encode(errors="replace")) for x in self.parts if isinstance(x, str))


def between(before: str, after: str) -> Mixed:
    """What a model fills in between, in the order of its markers; ``after`` is a field's suffix."""
    first, second, middle = (FileMarker(kind) for kind in ("prefix", "suffix", "middle"))
    return Mixed((first, before, second, after, middle), "suffix")


def spelled(mixed: Mixed, tokenizer: Tokenizer, add_special: bool) -> tuple[int, ...]:
    """Ids of ``mixed``; names of special tokens in its texts are text. Raises RequestError (400)
    where the model lacks a marker."""
    ids: list[int] = []
    for part in mixed.parts:
        if isinstance(part, int):
            ids.append(part)
            continue
        found = marker_id(tokenizer, part.kind) if isinstance(part, FileMarker) else None
        said = part.instead if isinstance(part, FileMarker) else part
        if found is not None:
            ids.append(found)
        elif said:
            ids += tokenizer.encode(said, add_special=False, parse_special=False)
        elif isinstance(part, FileMarker):
            raise RequestError(
                f"the model has no token for the {part.kind} of a file: it cannot fill in",
                param=mixed.marked_by,
                code="unsupported_parameter",
            )
    return tuple(tokenizer.surround(ids) if add_special else ids)


def marker_id(tokenizer: Tokenizer, kind: MarkerKind) -> int | None:
    for vocabulary in VOCABULARIES:
        if tokenizer.token_id(vocabulary["prefix"]) is not None:
            piece = vocabulary.get(kind)
            return None if piece is None else tokenizer.token_id(piece)
    return None
